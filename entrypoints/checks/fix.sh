#!/bin/sh
# What drydock's `check --fix-script` would change on this host for the image @IMAGE@.
# Nothing has been changed yet. Read it, then run it on the host (not in the container) as root:
#
#   --dry-run  prints what it would do and changes nothing
#   --all      also fixes INFO findings
#   --yes      changes the kernel's command line without asking
#
# It changes only settings that differ, so a second run changes nothing. To try it out, set ROOT=DIR: every path is then
# below DIR and no command of the host is run.
#
# shellcheck disable=SC2016 # commands are in single quotes because they are stored as text for the next boot
set -u

root=${ROOT:-}
dry_run=no
all=no
yes=no
parameters=
restart=no
changed=0
failed=0

for argument in "$@"; do
    case $argument in
        --dry-run) dry_run=yes ;;
        --all) all=yes ;;
        --yes) yes=yes ;;
        *)
            echo "usage: $0 [--dry-run] [--all] [--yes]" >&2
            exit 2
            ;;
    esac
done

if [ -z "$root" ] && [ -e /opt/drydock ]; then
    echo "this is a container: run the script on the host" >&2
    exit 2
fi
if [ -z "$root" ] && [ "$dry_run" = no ] && [ "$(id -u)" != 0 ]; then
    echo "only root can change these settings; --dry-run shows them" >&2
    exit 2
fi

say() { printf '%s\n' "$*"; }

problem() {
    printf '  FAILED    %s\n' "$*" >&2
    failed=$((failed + 1))
}

# begin ID SEVERITY: succeeds if the finding is to be fixed
begin() {
    if [ "$2" = INFO ] && [ "$all" = no ]; then
        say "$1 is INFO: skipped; --all fixes it too"
        return 1
    fi
    say "$1"
}

# may_change TEXT: counts and prints a change; fails in a dry run
may_change() {
    changed=$((changed + 1))
    if [ "$dry_run" = yes ]; then
        say "  would     $*"
        return 1
    fi
    say "  changes   $*"
}

# current FILE: prints its text; for a choice such as `always [madvise] never`, the word in brackets
current() {
    text=$(cat "$1" 2>/dev/null) || return 1
    case $text in
        *"["*"]"*)
            text=${text#*"["}
            text=${text%%"]"*}
            ;;
    esac
    printf '%s' "$text"
}

# set_now VALUE FILE...: writes files of /proc and /sys, which last until the next restart
set_now() {
    value=$1
    shift
    there=0
    for file in "$@"; do
        [ -e "$file" ] || continue
        there=$((there + 1))
        before=$(current "$file") || {
            problem "$file cannot be read"
            continue
        }
        [ "$before" != "$value" ] || continue
        may_change "$file: $before -> $value" || continue
        { printf '%s\n' "$value" >"$file"; } 2>/dev/null
        after=$(current "$file")
        [ "$after" = "$value" ] || problem "$file is still $after: the kernel did not accept $value"
    done
    [ "$there" != 0 ] || problem "$1: no such file on this host"
}

# run_now TEST COMMAND: runs a command of the host, unless TEST succeeds
run_now() {
    if [ -n "$root" ]; then
        say "  not run   $2"
    elif ! sh -c "$1" >/dev/null 2>&1 && may_change "$2"; then
        sh -c "$2" || problem "$2"
    fi
}

# keep FILE FIRST KEY LINE: writes LINE to one of our files and replaces the one that begins with KEY; a new file begins
# with FIRST
keep() {
    if [ -f "$root$1" ] && grep -Fqx -e "$4" "$root$1"; then
        return 0
    fi
    may_change "$1: $4" || return 0
    mkdir -p "$(dirname "$root$1")"
    {
        if [ -f "$root$1" ]; then
            awk -v key="$3" 'index($0, key) != 1' "$root$1"
        else
            printf '%s\n' "$2"
        fi
        printf '%s\n' "$4"
    } >"$root$1.new"
    mv "$root$1.new" "$root$1" || problem "$1 cannot be written"
}

ours="# Written by the script of drydock's check --fix-script. Remove this file to undo what it sets at each boot."

# keep_sysctl NAME VALUE
keep_sysctl() {
    keep /etc/sysctl.d/90-drydock.conf "$ours" "$1 = " "$1 = $2"
    for other in "$root"/etc/sysctl.conf "$root"/etc/sysctl.d/*.conf; do
        case $other in
            "$root"/etc/sysctl.d/90-drydock.conf) continue ;;
        esac
        if [ -f "$other" ] && grep -Eq "^[[:space:]]*-?$1[[:space:]]*=" "$other"; then
            say "  look      $other also sets $1; the file that is read last wins"
        fi
    done
}

# keep_write PATTERN VALUE: writes files of /sys at each boot
keep_write() {
    keep /etc/tmpfiles.d/90-drydock.conf "$ours" "w $1 " "w $1 - - - - $2"
}

# keep_command COMMAND: runs it at each boot, in our systemd unit
keep_command() {
    keep /usr/local/sbin/drydock-tuning "#!/bin/sh
$ours" "$1" "$1"
    keep /etc/systemd/system/drydock-tuning.service "$ours
[Unit]
Description=Tuning of this host for vLLM
[Install]
WantedBy=multi-user.target
[Service]
Type=oneshot
RemainAfterExit=yes" ExecStart= ExecStart=/usr/local/sbin/drydock-tuning
    wants=/etc/systemd/system/multi-user.target.wants
    if [ "$dry_run" = no ] && [ ! -L "$root$wants/drydock-tuning.service" ]; then
        chmod 755 "$root/usr/local/sbin/drydock-tuning"
        mkdir -p "$root$wants"
        ln -s /etc/systemd/system/drydock-tuning.service "$root$wants/drydock-tuning.service" || problem "$wants"
    fi
}

# keep_parameter WORD: collects words for the kernel's command line, which boot_loader writes at the end
keep_parameter() {
    case " $parameters " in
        *" $1 "*) ;;
        *) parameters="$parameters $1" ;;
    esac
}

# firmware TEXT: a setting that no script can change
firmware() {
    say "  by hand   in the BIOS: $1"
    restart=yes
}

# left TEXT: a finding that no script can fix
left() { say "by hand: $1"; }

# confirmed QUESTION: asks, unless --yes was given
confirmed() {
    [ "$yes" = no ] || return 0
    [ -t 0 ] || return 1
    printf '%s [y/N] ' "$1"
    read -r answer
    [ "$answer" = y ] || [ "$answer" = Y ]
}

# missing_parameters: prints those that the running kernel was not started with
missing_parameters() {
    for word in $parameters; do
        case " $(cat "$root/proc/cmdline" 2>/dev/null) " in
            *" $word "*) ;;
            *) printf '%s ' "$word" ;;
        esac
    done
}

# grub_file: prints the file that holds GRUB's options on this host
grub_file() {
    if [ -d "$root/etc/default/grub.d" ]; then
        echo /etc/default/grub.d/90-drydock.cfg
    elif [ -f "$root/etc/default/grub" ]; then
        echo /etc/default/grub
    fi
}

# write_menu: regenerates GRUB's menu
write_menu() {
    if [ -n "$root" ]; then
        say "  not run   update-grub"
    elif command -v update-grub >/dev/null; then
        update-grub || problem update-grub
    elif command -v grub2-mkconfig >/dev/null; then
        grub2-mkconfig -o /boot/grub2/grub.cfg || problem grub2-mkconfig
    else
        problem "neither update-grub nor grub2-mkconfig found: regenerate the boot loader's menu by hand"
    fi
}

# boot_loader: adds the missing words to the kernel's command line, with grubby where the distribution has it, else in
# our own file in /etc/default/grub.d (Debian, Ubuntu) or at the end of /etc/default/grub
boot_loader() {
    words=$(missing_parameters)
    [ -n "$words" ] || return 0
    restart=yes
    say "the kernel's command line lacks: $words"
    file=$(grub_file)
    if [ -z "$root" ] && command -v grubby >/dev/null; then
        if [ "$dry_run" = yes ]; then
            say "  would     grubby --update-kernel=ALL --args='$words'"
        elif confirmed "  add them with grubby to every kernel?"; then
            grubby --update-kernel=ALL --args="$words" || problem grubby
        else
            say "  by hand   grubby --update-kernel=ALL --args='$words'"
        fi
    elif [ -z "$file" ]; then
        say "  by hand   add them to your boot loader's configuration: this host has no /etc/default/grub"
    elif [ "$dry_run" = yes ] || confirmed "  add them to GRUB_CMDLINE_LINUX_DEFAULT in $file, and update-grub?"; then
        before=$changed
        for word in $words; do
            line="GRUB_CMDLINE_LINUX_DEFAULT=\"\$GRUB_CMDLINE_LINUX_DEFAULT $word\""
            keep "$file" "$ours" "$line" "$line"
        done
        [ "$dry_run" = yes ] || [ "$changed" = "$before" ] || write_menu
    else
        say "  by hand   add them to GRUB_CMDLINE_LINUX_DEFAULT in $file, then update-grub; --yes does it"
    fi
}

# @FINDINGS@

boot_loader

if [ "$dry_run" = yes ]; then
    say "$changed to change; dry run, nothing was changed"
else
    say "$changed changed, $failed failed"
fi
[ "$restart" = no ] || say "restart the host to apply changes of the kernel's command line or the BIOS"
[ "$failed" = 0 ]
