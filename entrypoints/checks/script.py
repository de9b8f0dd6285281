"""The parts of the host's script that are the same on every host: POSIX sh. Text only."""

from __future__ import annotations

PRELUDE = r"""#!/bin/sh
# What drydock's `check --fix-script` would change on this host for the image @IMAGE@.
# Nothing has been changed yet. Read it, then run it on the host (not in the container) as root:
#
#   --dry-run  says what it would do, and changes nothing
#   --all      mends what is only worth knowing (INFO), too
#   --yes      changes the kernel's command line without asking
#
# It leaves alone what is as wanted already, so that a second run changes nothing. With ROOT=DIR every path lies below
# DIR and no command of the host is run, to try it out.
#
# shellcheck disable=SC2016 # commands stand in single quotes: they are kept as text, for the next boot
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
    echo "this is the container: run it on the host" >&2
    exit 2
fi
if [ -z "$root" ] && [ "$dry_run" = no ] && [ "$(id -u)" != 0 ]; then
    echo "only root may change these settings; --dry-run shows them" >&2
    exit 2
fi

say() { printf '%s\n' "$*"; }

problem() {
    printf '  FAILED    %s\n' "$*" >&2
    failed=$((failed + 1))
}

# begin ID SEVERITY: whether a block is run
begin() {
    if [ "$2" = INFO ] && [ "$all" = no ]; then
        say "$1 is only worth knowing and left as it is; --all mends it, too"
        return 1
    fi
    say "$1"
}

# may_change WORDS: counts a change and says it; false where this is a dry run, which changes nothing
may_change() {
    changed=$((changed + 1))
    if [ "$dry_run" = yes ]; then
        say "  would     $*"
        return 1
    fi
    say "  changes   $*"
}

# current FILE: its text; of choices such as `always [madvise] never` the one in brackets
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

# set_now VALUE FILE...: the kernel's own files, until the next restart
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
        [ "$after" = "$value" ] || problem "$file is $after now: the kernel did not take $value"
    done
    [ "$there" != 0 ] || problem "$1: this host has no such file"
}

# run_now TEST COMMAND: a command of the host, unless the test says that nothing is left to do
run_now() {
    if [ -n "$root" ]; then
        say "  not run   $2"
    elif ! sh -c "$1" >/dev/null 2>&1 && may_change "$2"; then
        sh -c "$2" || problem "$2"
    fi
}

# keep FILE FIRST KEY LINE: a line in a file of ours, in the place of the one that begins with KEY; a new file has FIRST
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

ours="# Written by the script of drydock's check --fix-script; remove it to undo what it sets at each boot."

# keep_sysctl NAME VALUE
keep_sysctl() {
    keep /etc/sysctl.d/90-drydock.conf "$ours" "$1 = " "$1 = $2"
    for other in "$root"/etc/sysctl.conf "$root"/etc/sysctl.d/*.conf; do
        case $other in
            "$root"/etc/sysctl.d/90-drydock.conf) continue ;;
        esac
        if [ -f "$other" ] && grep -Eq "^[[:space:]]*-?$1[[:space:]]*=" "$other"; then
            say "  look      $other sets $1 as well; what is read last wins"
        fi
    done
}

# keep_write PATTERN VALUE: a file of /sys at each boot
keep_write() {
    keep /etc/tmpfiles.d/90-drydock.conf "$ours" "w $1 " "w $1 - - - - $2"
}

# keep_command COMMAND: at each boot, by a unit of ours
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

# keep_parameter WORD: for the kernel's command line; all of them are written together at the end
keep_parameter() {
    case " $parameters " in
        *" $1 "*) ;;
        *) parameters="$parameters $1" ;;
    esac
}

# firmware WORDS: what no script can set
firmware() {
    say "  by hand   in the BIOS: $1"
    restart=yes
}

# left WORDS: a finding that only a person can mend
left() { say "by hand: $1"; }
"""
"""From the first line to the first block."""

EPILOGUE = r"""
# --- the kernel's command line ---
# Adds words to GRUB's configuration and makes its menu anew: with grubby where the distribution has it, else by a line
# in a file of ours in /etc/default/grub.d (Debian, Ubuntu) or at the end of /etc/default/grub.

# confirmed QUESTION
confirmed() {
    [ "$yes" = no ] || return 0
    [ -t 0 ] || return 1
    printf '%s [y/N] ' "$1"
    read -r answer
    [ "$answer" = y ] || [ "$answer" = Y ]
}

# missing_parameters: those that the running kernel was not started with
missing_parameters() {
    for word in $parameters; do
        case " $(cat "$root/proc/cmdline" 2>/dev/null) " in
            *" $word "*) ;;
            *) printf '%s ' "$word" ;;
        esac
    done
}

# grub_file: where GRUB's words are kept on this host
grub_file() {
    if [ -d "$root/etc/default/grub.d" ]; then
        echo /etc/default/grub.d/90-drydock.cfg
    elif [ -f "$root/etc/default/grub" ]; then
        echo /etc/default/grub
    fi
}

# write_menu: makes the boot loader read what was written
write_menu() {
    if [ -n "$root" ]; then
        say "  not run   update-grub"
    elif command -v update-grub >/dev/null; then
        update-grub || problem update-grub
    elif command -v grub2-mkconfig >/dev/null; then
        grub2-mkconfig -o /boot/grub2/grub.cfg || problem grub2-mkconfig
    else
        problem "neither update-grub nor grub2-mkconfig is here: make the boot loader's menu anew by hand"
    fi
}

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
        say "  by hand   add them as your boot loader wants it: no /etc/default/grub is here"
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

boot_loader

if [ "$dry_run" = yes ]; then
    say "$changed to change; nothing was changed"
else
    say "$changed changed, $failed failed"
fi
[ "$restart" = no ] || say "restart the host for what stands on the kernel's command line or in the BIOS"
[ "$failed" = 0 ]
"""
"""From the last block to the end."""
