"""Lines of a log and exit codes → known failures, causes first; no text makes the search slow or reaches a terminal."""

from __future__ import annotations

import io
import json
import re
import time

import pytest

from entrypoints.checks.logs import read_log
from entrypoints.checks.symptoms import add_failures, explain_log, find_first_error, format_matches
from tests.support.cases import for_each
from tests.support.known_failures import PROFILES, explain_causes, explain_ids
from tests.support.sample import KNOWN, PROFILE

CUDA = PROFILES["cuda"]
SLOW = 5.0
"""Seconds of a processor that a search in the largest text may take; 1 or less where this was written."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("137", ["out-of-memory-killed"]),
        ("-9", ["out-of-memory-killed"]),
        ("SIGKILL", ["out-of-memory-killed"]),
        ("signal 9", ["out-of-memory-killed"]),
        ("OOMKilled", ["out-of-memory-killed"]),
        ("CrashLoopBackOff", ["pod-crash-loop"]),
        ("server exited with code 137", ["out-of-memory-killed"]),
        ("Exited (139) 3 minutes ago", ["segmentation-fault"]),
        ("died with <Signals.SIGSEGV: 11>.", ["segmentation-fault"]),
        ("Signal 11 (SIGSEGV) received by PID 12", ["segmentation-fault"]),
        ("vllm.service: Main process exited, code=killed, status=9/KILL", ["out-of-memory-killed"]),
        ("exitcode: -6 (pid: 12)", ["aborted"]),
        ("return code: 135", ["bus-error"]),
        ("      Exit Code:    143", ["terminated"]),
        ('"ExitCode": 135,', ["bus-error"]),
        ("exit 14", ["exit-refused"]),
        ("code 14", ["exit-refused"]),
        ("14", ["exit-refused"]),
        ("13", ["exit-not-known"]),
        ("drydock: ended with exit code 12: rank 1 ended", ["exit-group"]),
        ("worker exited with non-zero code: 139", ["segmentation-fault"]),
        ("an exit code 1374 is none", []),
        ("1", ["vllm-error"]),
        ("0", []),
        ("NPU-043 and NET-001, no FOO-001", ["NPU-043", "NET-001"]),
        ("", []),
        ("12345678", []),
    ],
)
def test_exit_codes_are_read_as_engines_write_them_and_ids_of_findings_are_known(
    text: str, expected: list[str]
) -> None:
    assert explain_ids(text) == expected


MAMBA = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (612). Each decode request requires one"
SHAPE = "ValueError: The {} size is not aligned with the quantized weight shape. This can be caused by too large tensor"
MISSES = {
    ("cuda", MAMBA): "mamba-blocks",
    ("cuda", SHAPE.format("input")): "quantised-shape",
    ("enflame", SHAPE.format("output")): "quantised-shape",
    ("cuda", "ValueError: No valid attention backend found for cuda"): "attention-backend-none",
    ("cuda", "NotImplementedError: Pipeline parallelism is not supported for this model."): "pipeline-not-supported",
    ("cuda", "pynvml.NVMLError_LibRmVersionMismatch: RM has detected"): "cuda-driver-library-mismatch",
    ("cuda", "RM has detected an NVML/RM version mismatch."): "cuda-driver-library-mismatch",
    ("cuda", "pynvml.NVMLError_Unknown: Unknown Error"): "cuda-lost-devices",
    ("cuda", "pynvml.NVMLError_GpuIsLost: GPU is lost"): "cuda-off-the-bus",
    ("neuron", "KeyError: 'LOCAL_WORLD_SIZE'"): "neuron-local-world-size",
    ("tpu", "RuntimeError: TPU initialization failed: Failed to get global TPU topology."): "tpu-topology",
    ("ascend", "dcmi module initialize failed. ret is -8005"): "ascend-npu-not-opened",
    ("ascend", "dcmi model initialized failed, because the device is used. ret is -8020"): "ascend-npu-in-use",
    ("ascend", "NPU function error: SUSPECT REMOTE ERROR, error code is 507057"): "ascend-suspect-remote",
    ("ascend", "[ERROR] SUSPECT MEM ERROR"): "ascend-suspect-memory",
    ("cpu", "  20614 10001     20   0 9216m 1.2g 0.3g R 99.3 4.9 5:12.40 VLLM::EngineCor"): "idle-core-busy",
    ("cuda", "VLLM:EngineCore thread consumes 100% CPU idle"): "idle-core-busy",
    ("cuda", "100% CPU usage when idle. While loop in `acquire_read` pegging the CPU."): "idle-core-busy",
    ("rocm", "VLLM::EngineCore busy loop takes 100% of one CPU core, wasting power."): "idle-core-busy",
    ("rocm", "rocr::core::Runtime::AsyncEventsLoop(void*)"): "rocm-idle-core-busy",
    ("ascend", "EZ3002: Optype [MatMulV3] of Ops kernel [AIcoreEngine] is unsupported"): "ascend-operator-unsupported",
}


@for_each([(*line, cause) for line, cause in MISSES.items()], str)
def test_a_line_of_a_public_report_has_one_cause(accelerator: str, line: str, cause: str) -> None:
    assert explain_causes(line, accelerator) == [cause]


KNOWN_LINES = """
cuda hub-login OSError: You are trying to access a gated repo.
cuda cuda-nccl-numa-memory Error while attaching to shared memory segment /dev/shm/nccl-K (size 0), error: No such file
cuda ray-resources [ray_utils.py:352] Tensor parallel size (16) exceeds available GPUs (8).
cuda ray-resources Waiting for creating a placement group of specs for 150 seconds. specs=[{'GPU': 1.0}]
ascend ascend-mooncake-transfer ascend_direct_transport.cpp:820] Failed to connect to target: 10.0.0.9:25389
cuda worker-died A worker died or was killed while executing a task by an unexpected system error.
cuda worker-died The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
cuda home-not-writable error: failed to create directory `/.cache/uv`: Permission denied (os error 13)
cuda home-not-writable FileNotFoundError: [Errno 2] No such file or directory: '/.cache/fissix'
cuda home-not-writable because the default path (/.config/matplotlib) is not a writable directory
cuda home-not-writable [Errno 13] Permission denied: '/var/www/.config'
cuda disk-full UserWarning: Not enough free disk space to download the file. The expected file size is: 4915.92 MB.
cuda nixl-handshake [nixl_connector.py:548] Handshake with c00824be failed
cuda kv-peer-lost ucx_utils.cpp:62] Unexpected UCX error: Request canceled
cuda cuda-driver-no-answer nvidia-container-cli: initialization error: cuda error: unknown error
cuda cuda-driver-no-answer nvidia-container-cli: initialization error: nvcgo rpc error: timed out
cuda cuda-toolkit-cgroup nvidia-container-cli.real: container error: cgroup subsystem devices not found
tpu tpu-backend jax.errors.JaxRuntimeError: INTERNAL: TPU initialization failed: TPU_RET_CHECK failure
tpu tpu-no-chips AttributeError: 'jaxlib._jax.Device' object has no attribute 'coords'
ascend ascend-hccl-init [op_base.cc:974]errNo[0x0000000005000002]HcclCommInitRootInfo failed.
rocm rocm-no-gpu rocBLAS error: Could not initialize Tensile host: No devices found
rocm rocm-no-gpu error:Could not initialize Tensile host: No devices found
rocm rocm-no-gpu Unable to open /dev/kfd read-write: Permission denied
rocm rocm-no-gpu Unable to open /dev/kfd read-write: Operation not permitted
rocm rocm-no-gpu Either run ollama as root, or add you to the render group. open /dev/kfd: permission denied
rocm rocm-kfd-refuses Unable to open /dev/kfd read-write: Invalid argument
rocm rocm-kfd-refuses Unable to open /dev/kfd read-write: Cannot allocate memory
rocm rocm-out-of-resources hsa api call failure: HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate
rocm rocm-amdsmi AmdSmiLibraryException: Error code: 14 | AMDSMI_STATUS_FILE_ERROR
rocm rocm-driver-not-loaded Unable to get devices, driver not initialized (amdgpu not found in modules)
rocm rocm-hardware-exception RuntimeError: HIP error: hipErrorLaunchFailure
rocm rocm-hardware-exception torch.AcceleratorError: HIP error: unspecified launch failure
cuda cuda-host-libraries nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open
cuda cuda-host-driver nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown
cuda cuda-host-driver NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
cuda cuda-driver-no-answer nvidia-container-cli: initialization error: driver error: failed to process request
cuda cuda-driver-no-answer nvidia-container-cli: detection error: nvml error: unknown error
cuda cuda-toolkit-ldconfig nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9
cuda cuda-toolkit-cgroup nvidia-container-cli: container error: cgroup subsystem devices not found: unknown
cuda cuda-driver-in-image nvidia-container-cli: mount error: file creation failed: /x/libnvidia-ml.so.1: file exists
cuda cuda-blocked-by-windows nvidia-container-cli: WSL environment detected but no adapters were found: unknown
cuda cuda-cdi failed to inject devices: failed to stat CDI host device "/dev/dri/renderD129": no such file
cuda cuda-cdi-not-made failed to generate CDI spec: failed to locate libcuda.so.535.183.06
cuda cuda-cdi-not-known Error response from daemon: container create: stat nvidia.com/gpu=all: no such file or directory
cuda cuda-driver-too-old nvidia-container-cli: requirement error: unsatisfied condition: cuda >= 9.0
cuda cuda-wake-memory Call to wake_up method failed: CUDA Error: out of memory at <path>:163
cuda cuda-wake-memory RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62
cuda cuda-illegal-access RuntimeError: CUDA error: an illegal instruction was encountered
cuda cuda-flashinfer-download flashinfer.jit: Downloading https://x/checksums.txt: attempt 1 failed: 403 Client Error
cuda cuda-imex NCCL WARN MNNVL (cliqueSize 4) is available but not working on this system. Check the IMEX
cuda home-not-writable InductorError: PermissionError: [Errno 13] Permission denied: '/.triton'
cuda home-not-writable [rank1]: PermissionError: [Errno 13] Permission denied: '/.cache'
cuda home-not-writable PermissionError: [Errno 13] Permission denied: '/app/engine/.triton'
cuda home-not-writable PermissionError: [Errno 13] Permission denied: '/root/.cache/huggingface/token'
cuda home-not-writable PermissionError: [Errno 13] Permission denied: '/home/appuser/.cache/huggingface'
rocm temporary-folder-of-another Permission denied: '/tmp/tvm-debug-mode-tempdirs/1'
cuda package-folder-not-writable [Errno 13] Permission denied: /usr/lib/python3.12/dist-packages/flashinfer_cubin/cubins
cuda cache-not-writable There was a problem when trying to write in your cache folder (/x/.cache/huggingface/hub).
cpu hub-xet-cut CAS service error : Error : single flight error: Real call failed: CasObjectError(InternalIOError
cpu hub-xet-cut CAS service error : Error : result term data length 63574543 did not match expected value 67084736
cpu hub-xet-disk RuntimeError: Data processing error: CAS service error : IO Error: Timer expired (os error 62)
cpu hub-xet-refused reqwest::Error { kind: Status(403), url: \"https://transfer.xethub.hf.co/xorbs/default/d2
cpu hub-file-left HfHubHTTPError: 416 Client Error: Range Not Satisfiable
cpu hub-file-left 416 Client Error: Requested Range Not Satisfiable for url: https://cdn-lfs.huggingface.co/x
cpu hub-connection HTTPSConnectionPool(host='cdn-lfs.huggingface.co', port=443): Read timed out.
cpu hub-connection error sending request for url (https://transfer.xethub.hf.co/xorbs/default/63e4)
cuda gloo-loopback Gloo connectFullMesh failed with [pair.cc:152] Connection refused, remote=[127.0.0.1]:38147 (rank=8,
cuda gloo-loopback Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback.
cuda peer-unreachable [c10d] The client socket has failed to connect to any network address of (10.0.0.1, 48247).
ascend peer-unreachable [c10d] The server socket on [::ffff:198.18.0.1]:43195 has timed out, will retry.
cuda socket-warning [c10d] The hostname of the client socket cannot be retrieved. err=-3
cuda ray-head-not-reached gcs_rpc_client.h:151: Failed to connect to GCS at address 192.168.2.40:6379 within 5 seconds.
cuda ray-head-not-reached gcs_client.cc:348: Couldn't reconnect to GCS server.
cuda ray-not-here Could not connect to socket /tmp/ray/session_2020-03-28/sockets/raylet
cuda ray-versions-differ Exception: Version mismatch: The cluster was started with:
cuda ray-node-lost The node with node id: 97 has been marked dead because the detector has missed too many heartbeats
cuda ray-worker-slow Some workers of the worker process(75780) have not registered within the timeout.
cuda terminated KeyboardInterrupt: terminated
cuda worker-died Worker VllmWorkerProcess pid 3283517 died, exit code: -15
xpu segmentation-fault VLLM::EngineCor[178864]: segfault at 18 ip 00007f638cc3aa57 sp 00007fff error 4 in libze
cuda container-hook error running prestart hook #0: exit status 1, stdout: , stderr:
rocm rdma-memory UCX ERROR ibv_reg_mr failed: Cannot allocate memory
cuda rdma-memory UCX  ERROR ibv_exp_reg_mr(address=0xf1, length=6544) failed: Resource temporarily unavailable
cuda rdma-gpu-memory UCX  ERROR Local protection error on mlx5_0:1/RoCE (synd 0x4 vend 0x51 hw_synd 0/2)
cuda rdma-gpu-memory ib_mlx5_log.c:177  Local protection on mlx5_0:1/IB (synd 0x4 vend 0x51 hw_synd 0/2)
cuda rdma-gpu-memory rc_verbs_iface.c:63   FATAL: send completion with error: local protection error
cuda rdma-remote-memory UCX  ERROR Remote access error on mlx5_0:1/RoCE (synd 0x13 vend 0x88 hw_synd 0/0)
cuda rdma-no-answer Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)
cuda kv-peer-lost UCX  ERROR tcp_ep 0x3c502370 (state=CONNECTED): send(110) failed: Input/output error
cuda kv-peer-lost nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT
cuda kv-peer-lost send completion[0] with error on rdmap132s0/0x55cf: Work Request Flushed Error, vendor_err 0x1
cuda nixl-handshake NIXL transfer failure: handshake_setup_failed | Context: {'failure_type': 'handshake_setup_failed'
cuda ucx-of-another-package UCX  WARN  UCP version is incompatible, required: 1.18, actual: 1.12 (release 1)
cuda mooncake-no-card topology.cpp:71] No RDMA devices found, check your device installation
cuda mooncake-failed store_py.cpp:367] Put operation failed with error: TRANSFER_FAIL
cuda mooncake-metadata Unable to find metadata storage plugin etcd with conn string: etcd://10.0.0.103:2379
cuda nccl-after-failure Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels,
cuda nccl-monitor-port ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use
cuda nccl-no-rdma transport/net_ib.cc:149 NCCL WARN NET/IB : Unable to open device mlx5_59
cuda nccl-other-program misc/socket.cc:441 NCCL WARN socketFinalizeAccept: wrong type 4 != 3
cuda nccl-network-plugin NCCL WARN Failed to initialize any NET plugin
cuda quantised-threads RuntimeError: size_k must divisible by BLOCK_SIZE_K
cuda quantised-threads RuntimeError: prob_m = 59136 is not divisible by thread_m = 512
ascend device-forked RuntimeError: Cannot re-initialize NPU in forked subprocess. To use NPU with multiprocessing
ascend ascend-cann-environment ImportError: libhccl.so: cannot open shared object file: No such file or directory
ascend ascend-cann-environment libascend_dump.so: cannot open shared object file: No such file or directory
ascend ascend-packages-differ /x/torch_npu/lib/libop_plugin_atb.so: undefined symbol: _ZN3atb15CreateOperation
ascend ascend-packages-differ /Ascend/nnal/atb/latest/atb/cxx_abi_1/lib/libtbe_adapter.so: undefined symbol: _ZN3Mki2Dl
ascend ascend-torch-npu-old AttributeError: module 'torch_npu' has no attribute 'npu_rope'
ascend ascend-no-package ModuleNotFoundError: No module named 'torch_npu'
ascend ascend-task-scheduler AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507001
ascend ascend-hccl-transport-hosts Transport init error! createLink para:rank[7], linkMode[1], isUsedRdma[1]
ascend ascend-hccl-transport EI0009: Transport init error. Reason: [Create][DestLink]Create Dest error!
ascend ascend-acl-call-failed RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64
xpu xpu-oneapi-mixed libur_loader.so.0: version `LIBUR_LOADER_0.10' not found (required by libsycl.so.8)
xpu xpu-by-path |CCL_ERROR| ze_fd_manager.cpp:214 fill_device_fds: condition fds[dev_idx] > 0 failed
xpu xpu-kernel-not-built level_zero backend failed with error: 18 (UR_RESULT_ERROR_PROGRAM_BUILD_FAILURE)
xpu xpu-no-device zeInit failed: ZE_RESULT_ERROR_UNINITIALIZED
neuron neuron-device-memory RuntimeError: nrt_load_collectives status=4 message="Allocation Failure"
neuron neuron-device-memory [TDRV:dmem_alloc] Failed to alloc DEVICE memory: 4194304
neuron neuron-invalid RuntimeError: nrt_tensor_allocate status=2 message="Invalid"
neuron neuron-execution nrt_execute: status=1004, error message="Execution was completed with other errors".
neuron neuron-unspecific nrt_load status=1, error message="Non specific failure".
neuron neuron-timeout NRT:nrt_infodump    Failure: NRT_TIMEOUT in nrt_execute()
neuron neuron-network NRT:nrt_infodump    Failure: NRT_NETWORK_PROXY_FAILURE in nrt_execute()
neuron neuron-runtime-not-started Warning: Neuron runtime could not be initialized. Model was not sent to NeuronCore
tpu tpu-busy libtpu.so already in used by another process. Not attempting to load libtpu.so in this process.
tpu tpu-not-opened TPU initialization failed: open(/dev/accel2): Operation not permitted: Operation not permitted
tpu tpu-not-opened Invalid fd: -1; Couldn't open device: /dev/accel0 (Operation not permitted); Unable to create
tpu tpu-worker-names JaxRuntimeError: INVALID_ARGUMENT: Error: unexpected worker hostname
tpu tpu-topology TPU backend initialization is taking more than 60.0 seconds. Did you run your code on all TPU hosts?
habana gaudi-acquire-failed vLLM pod is unable to start: Device acquire failed.
habana gaudi-cards-shared error running hook: stderr: exposing interfaces: failed creating temporary link on host
habana gaudi-modules RuntimeError: Invalid HABANA_VISIBLE_MODULES=5. Module IDs should be between 0 and 0.
ascend ascend-core-exception ACL stream synchronize failed, error code:507014
xpu xpu-kernel-not-built The current device architecture is not supported by sycl_ext_oneapi_device_architecture.
xpu xpu-kernel-not-built -46 (PI_ERROR_INVALID_KERNEL_NAME)
rocm docker-cdi-off Error response from daemon: could not select device driver "cdi" with capabilities: []
cuda file-system-damaged OSError: [Errno 74] Bad message: '/home/g/.cache/huggingface/hub/.locks/models--x'
cuda ucx-ipc-handle UCC  ERROR ipc-cache: failed to open ipc mem handle. addr:0x7f65a8000000 len:16777216 err:201
cuda nccl-fabric EP: Failed to modify QP to RTR: Connection timed out
cuda nccl-fabric UCX  ERROR ibv_create_ah(dlid=49152 sgid_index=3) for RC DEVX QP connect failed: Connection timed out
cuda nccl-remote-ended misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer host-2<51159>
cuda nccl-after-failure proxy.cc:1519 NCCL WARN [Proxy Service 0] Failed to execute operation Connect from rank 0
cuda nccl-peer-not-reached NCCL INFO Call to connect returned Connection timed out, retrying
cuda nccl-no-rdma misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]
cuda nccl-efa NCCL WARN NET/OFI aws-ofi-nccl initialization failed
cuda rdma-link-down NCCL WARN NET/IB : mlx5_0:1 Got async event : port error
cuda cuda-nccl-not-supported init.cc:416 NCCL WARN Cuda failure 'operation not supported'
cuda ucx-peer-not-reached sock.c:323 UCX ERROR connect(fd=87, dest_addr=172.17.0.1:47133) failed: Connection refused
cuda ucx-peer-not-reached pml_ucx.c:419 Error: ucp_ep_create(proc=9) failed: Destination is unreachable
cuda ucx-peer-not-reached DIAG  client ep failed: device br-vsw-1 is not enabled, enable it in UCX_NET_DEVICES or use
cuda kv-peer-lost ucx_utils.cpp:43] Unexpected UCX error: Input/output error
cuda ucx-no-transport UCX  WARN  network device 'mlx5_1:1' is not available, please use one or more of: 'eth0'(tcp)
cuda ucx-of-another-package UCX  WARN  UCX version is incompatible, required: 1.17, actual: 1.15
cuda ucx-shared-memory UCX  ERROR shm_open(file_name=/ucx_shm_posix_7 flags=0x0) failed: No such file or directory
cuda ucx-shared-memory UCX  ERROR open(file_name=/proc/12/fd/43 flags=0x0) failed: Permission denied
cuda rdma-gpu-memory UCX  ERROR failed to register address 0x7f mem_type cuda bit 0x2 length 4096: Input/output error
cuda nixl-no-plugin nixl_agent.cpp:322] createBackend: unsupported backend 'UCX'
cuda nixl-plugin-not-loaded nixl_plugin_manager.cpp:288] Failed to load plugin 'LIBFABRIC' from any directory
cuda libnuma-nodes request to allocate mask for invalid number: Invalid argument
cuda mooncake-failed worker_pool.cpp:237] Worker: Cannot make connection for endpoint: localhost:13028@mlx5_0
cuda cuda-nvshmem nvshmem/src/modules/transport/ibrc/ibrc.cpp:418: non-zero status: 110 ibv_modify_qp failed
cuda cuda-nvshmem transport/ibgda/ibgda.cpp:2234: NULL value Unable to create ah.
cuda cuda-deepep-assertion RuntimeError: Failed: Assertion error csrc/kernels/internode.cu:1713 'a / b > c'
cpu cache-not-writable Data processing error: I/O error: Permission denied (os error 13)
cpu hub-login RuntimeError: Task error: Unable to parse string as hex hash value (got '********')
cuda hub-connection Connection to cas-bridge-direct.xethub.hf.co timed out. (connect timeout=10)
cuda proxy url: "https://x.xethub.hf.co/x", hyper_util::client::legacy::Error(Connect, "proxy authentication required")
cuda hub-server-error 504 Server Error: Gateway Time-out for url: https://huggingface.co/api/models/x/revision/main
cuda hub-server-error FileMetadataError: Distant resource does not seem to be on huggingface.co.
cuda hub-no-such-file 404 Client Error. Entry Not Found for url: https://huggingface.co/a/b/resolve/main/config.json.
cuda hub-transfer-missing enabled (HF_HUB_ENABLE_HF_TRANSFER=1) but 'hf_transfer' package is not available in your
cuda network-file-system OSError: [Errno 116] Stale file handle: '/cache/hub/models--x/blobs/y.lock'
cuda disk-full OSError: [Errno 122] Disk quota exceeded
cuda modelscope-file-cut File /x/._____temp/model.safetensors integrity check failed, expected sha256 signature is 5885
cuda modelscope-login modelscope - WARNING - Authentication has expired, please re-login if you need to access private
cuda ray-memory (raylet) node_manager.cc:3219: 2 Workers (tasks / actors) killed due to memory pressure (OOM)
cuda ray-node-lost (raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL
cuda ray-node-lost Task failed due to the node dying. The node (IP: 10.0.5.85) where this task was running crashed
cuda ray-resources The actor or task with ID ff cannot be scheduled right now. Ignore this if this Ray cluster
cuda ray-object-store WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only 5 bytes
cuda container-start-denied container_linux.go:336: starting container process caused "setup user: permission denied"
cuda container-start-denied standard_init_linux.go:178: exec user process caused "permission denied"
cuda container-limits crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied
cuda library-truncated ImportError: /usr/lib/aarch64-linux-gnu/nvidia/libnvdla_compiler.so: file too short
cuda port-privileged Error: rootlessport cannot expose privileged port 80
cuda podman-user-ids potentially insufficient UIDs or GIDs available in user namespace
cuda podman-short-name short-name "a/b" did not resolve to an alias and no unqualified-search registries are defined
cuda user-bus Failed to connect to bus: No medium found
cuda unit-start-limit vllm.service: Start request repeated too quickly.
cuda unit-timeout vllm.service: start operation timed out. Terminating.
cuda unit-unknown quadlet-generator[123]: converting "vllm.container": unsupported key 'Foo' in group 'Container'
cuda out-of-memory-killed vllm.service: Failed with result 'oom-kill'.
cuda cuda-toolkit-incomplete ERROR: inject NVIDIA hook: stat /usr/bin/nvidia-container-runtime-hook: no such file
cuda cuda-podman-hook Error: error executing hook `/usr/bin/nvidia-container-toolkit` (exit code: 1): OCI runtime error
cuda cuda-toolkit-mode invoking the NVIDIA Container Runtime Hook directly (e.g. specifying the docker --gpus flag)
cuda cuda-toolkit-cgroup bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted: unknown
cuda cuda-driver-files-gone nvidia-container-cli: mount error: stat failed: /x/gsp_ad10x.bin: no such file
cuda cuda-no-container-toolkit failed to get sandbox runtime: no runtime for "nvidia" is configured
cuda cuda-host-driver failed to load module nvidia-uvm
cuda pod-image-pull Failed to pull image "x": rpc error: code = NotFound desc = failed to pull and unpack image
cuda pod-volume pod has unbound immediate PersistentVolumeClaims
neuron pod-no-device 1 Insufficient aws.amazon.com/neuron
cuda flag-value vllm serve: error: argument --compilation-config/-O: 1 validation error for CompilationConfig
cuda rope-type Value error, rope_scaling should have a 'rope_type' key [type=value_error, input_value=ArgsKwargs((
cuda model-json-broken Value error, Expecting value: line 1 column 1 (char 0) [type=value_error, input_value=
cuda weight-name-unknown KeyError: 'blocks.0.attn.qkv.weight'
cuda speculative-method NotImplementedError: Speculative decoding with draft model is not supported yet. Please consider
cuda launcher-not-compiled CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-O3', '-shared', '-fPIC',
cuda cuda-ptxas-failed RuntimeError: Internal Triton PTX codegen error
cuda cuda-fp8-type ValueError: type fp8e4nv not supported in this architecture.
cuda cuda-no-nvcc /bin/sh: 1: /usr/local/cuda/bin/nvcc: not found
cuda cuda-no-nvcc fatal error: curand_kernel.h: No such file or directory
rocm triton-shared-memory OutOfResources: out of resource: shared memory, Required: 66560, Hardware limit: 65536.
rocm rocm-invalid-device-function HSA_STATUS_ERROR_INVALID_ISA: The instruction set architecture is invalid.
rocm rocm-invalid-device-function rocBLAS error from hip error code: 'hipErrorInvalidDeviceFunction':98
rocm rocm-out-of-resources hsa_init failed with 1008
rocm rocm-libraries-missing ImportError: libamdhip64.so.6: cannot open shared object file: No such file or directory
ascend ascend-stream-resources AclmdlRICaptureBegin(capture_stream_, capture_mode), error code is 207005
ascend ascend-feature-missing EH9999: rtSetStreamFailureMode failed, runtime result = 207000.
ascend ascend-cann-environment ModuleNotFoundError: No module named 'tbe.common'
ascend ascend-operator-unsupported op[QuantBatchMatmulV3], this platform only support output transpose_x1 false
ascend ascend-operator-failed RuntimeError: setup failed!
ascend ascend-packages-differ ImportError: undefined symbol: MsprofSysCycleTime
neuron neuron-no-driver NRT:nrt_init     Unable to read compatible Driver version.
neuron neuron-no-device NRT: nrt_init     This instance has no neuron devices. please run on an instance that supports
neuron neuron-compiler-failed [INTERNAL_ERROR] [NCC_INLA001] Unhandled exception with message: type must be boolean
neuron neuron-timeout (FATAL-RT-UNDEFINED-STATE) inference timeout (600000 ms) on Neuron Device 0 NC 0, waiting for
neuron neuron-out-of-bound NMGR:dlr_infer      Inference completed with err: 1006. mode->h_nn=1001
xpu xpu-no-device Native API failed. Native API returns: -1 (PI_ERROR_DEVICE_NOT_FOUND)
xpu xpu-pidfd |CCL_WARN| pidfd is not supported, fallbacks to drmfd exchange mode
tpu tpu-model-not-ported AttributeError: 'Tensor' object has no attribute '_elem'
tpu tpu-busy ABORTED: The TPU is already in use by another process probably owned by another user.
habana gaudi-no-interfaces Warning: no habanalabs network interfaces were detected
cpu cpu-onednn-primitive RuntimeError: could not create a primitive
cpu cpu-triton-kernel TypeError: 'function' object is not subscriptable
cuda cuda-xid-program NVRM: Xid (PCI:0000:18:00): 31, pid=9, name=VLLM::Worker, Ch 00000008, intr 00000000. MMU Fault
cuda cuda-xid-memory NVRM: Xid (PCI:0000:18:00): 94, pid=9, name=VLLM::Worker, Contained: SM (0x1). RST: No
cuda cuda-xid-memory torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered
cuda cuda-xid-firmware NVRM: Xid (PCI:0000:18:00): 119, pid=9, Timeout after 6s of waiting for RPC response
cuda cuda-xid-nvlink NVRM: Xid (PCI:0000:18:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000004 0x80000000)
cuda cuda-xid-follows NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)
cuda cuda-off-the-bus NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>
cuda cuda-hardware-error NVRM: Xid (PCI:0000:18:00): 109, pid=9, name=VLLM::Worker, errorString CTX SWITCH TIMEOUT
cuda cuda-illegal-access torch.AcceleratorError: CUDA error: unspecified launch failure
cuda cuda-no-usable-gpu NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)
cuda cuda-no-usable-gpu No devices were found
cuda cuda-no-utility NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA
cuda cuda-host-driver pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded
cuda cuda-no-nvcc OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.
cuda cuda-out-of-memory NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED
cuda cuda-no-bfloat16 ptxas /tmp/t.ptx, line 9; error   : Feature '.bf16' requires .target sm_80 or higher
cuda transformers-too-old Exception: data did not match any variant of untagged enum ModelWrapper
tpu tpu-topology RuntimeError: TPU backend initialization is taking more than 60.0 seconds.
cuda cuda-mps CUDA error: MPS client failed to connect to the MPS control daemon or the MPS server
cuda cuda-launch-timeout CUDA error: the launch timed out and was terminated
cuda cuda-unknown-error misc/cudawrap.cc:33 NCCL WARN Cuda failure 999 'unknown error'
cuda config-refused   Value error, max_num_active_seqs (300) cannot be greater than max_num_seqs (256).
cuda quantisation-unknown   Value error, Unknown quantization method: foo. Must be one of ['awq', 'fp8'].
cuda config-header pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
cuda moe-backend-none RuntimeError: FlashInfer-CUTLASS MoE kernel does not support current device sm_120
cuda attention-backend-none AssertionError: Sinks are only supported in FlashAttention 3
cuda quantised-shape ValueError: MXFP8 MoE requires intermediate_size_per_partition divisible by 32, got 336.
cuda vllm-of-sources WARNING [_custom_ops.py:20] Failed to import from vllm._C with No module named 'vllm._C'
rocm rocm-hardware-exception c10::AcceleratorError: CUDA error: unspecified launch failure
rocm rocm-invalid-device RuntimeError: HIP error: invalid device ordinal
rocm rocm-invalid-device-function torch.AcceleratorError: CUDA error: no kernel image is available for execution
rocm rocm-memory-access-fault amdgpu 0000:83:00.0: amdgpu: [mmhub0] no-retry page fault (src_id:0 ring:0 vmid:8 pasid:3)
rocm rocm-memory-errors amdgpu: socket: 0, die: 0 2 new uncorrectable hardware errors detected in umc block
ascend ascend-stream-timeout RuntimeError: ACL stream synchronize failed, error code:507046
ascend ascend-graph-capture aclrtSynchronizeStream(stream), error code is 107027
ascend ascend-stopped NPU function error: FORCE STOP., error code is 107022
ascend ascend-vector-core EZ9999: rtKernelLaunchWithHandleV2 failed: 507036[FUNC:Launch]
ascend ascend-kernels-missing call aclnnRope failed, error code is 561112
ascend ascend-driver-permission npu-smi: get card list failed, ret is -8002
ascend ascend-suspect-remote 507057
neuron neuron-unspecific Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1
neuron neuron-neff-version nrt_load status=10
neuron neuron-host-memory nrt_load status=11, error message="Failed to allocate host memory".
neuron neuron-queue-overflow Inference completed with err: 1204. mode->h_nn=1001
neuron neuron-network nrt_execute: status=1206
habana gaudi-bridge-exception [Rank:0] Habana exception raised from LaunchRecipe at graph_exec.cpp:558
habana gaudi-out-of-memory [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::117440512 (112)MB
cuda cuda-host-libraries nvidia-container-cli: initialization error: cannot open shared object file: no such file or
cuda cuda-nvml-not-permitted nvidia-container-cli: initialization error: nvml error: insufficient permissions: unknown
cuda cuda-no-kernel-image NotImplementedError: No compiled cutlass_scaled_mm for CUDA device capability: 120.
cuda cuda-too-many-peers allocator.cc:79 NCCL WARN Cuda failure 711 'peer mapping resources exhausted'
cuda cuda-cutlass-failed RuntimeError: cutlass_gemm_caller.cuh:61 Error Internal
cuda missing-tensors AssertionError: Attempted to load weight (torch.Size([3600])) into parameter (torch.Size([3584]))
cuda lora-modules ValueError: base_model.model.lm_head.weight is unsupported LoRA weight
cuda adapter-not-loaded RuntimeError('Error in model execution: Loading lora /home/x/models/adapter_otas failed')
cuda nixl-peers-differ assert self.num_blocks >= nixl_agent_meta.num_blocks
cuda lmcache-differs assert isinstance(allocator_backend, AllocatorBackendInterface)
cuda lmcache-buffer AssertionError: Buffer size 5368709120 must be a multiple of align bytes 17989632 in paged memory
cuda media-placeholders Expected there to be 4 prompt updates corresponding to 4 image items, but instead found 3
cuda media-placeholders ValueError: Attempted to assign 421 + 421 = 2526 multimodal tokens to 12606 placeholders
cuda image-processor-old ValueError: size must contain 'shortest_edge' and 'longest_edge' keys.
cuda request-too-long The prompt (total length 25938) is too long to fit into the model (context length 4096).
cuda vllm-of-sources AttributeError: '_OpNamespace' '_moe_C' object has no attribute 'topk_softmax'
cuda local-folder-metadata Error retrieving safetensors: Repo id must be in the form 'repo_name' or 'name
habana gpus-option could not select device driver "" with capabilities: [[gpu]].
rocm gpus-option Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]
rocm rocm-aiter-build (VllmWorkerProcess pid=290) failed build jit [module_moe_ck2stages]
rocm library-symbol AttributeError: module 'torch._C' has no attribute '_PYBIND11_COMPILER_TYPE'
ascend ascend-hccl-init hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank, &(comm->hcclComm_)), error code is 11
ascend ascend-no-driver-libraries npu-smi: error while loading shared libraries: libc_sec.so: cannot open shared object
ascend ascend-npu-not-opened DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)
ascend ascend-compiler-start [Init][Compiler]Init compiler failed[FUNC:ReportInnerError][FILE:log_inner.cpp]
ascend ascend-backend-not-loaded RuntimeError: Failed to load the backend extension: torch_npu. You can disable
ascend ascend-no-npu-smi bash: npu-smi: command not found
tpu tpu-reserve RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 1.00G. That was not possible.
tpu tpu-no-chips A Google TPU may be present on this machine, but libtpu is not installed. Falling back to cpu.
xpu xpu-ccl-workers RuntimeError: oneCCL: exec.cpp:122 start_workers: EXCEPTION: failed to start worker # 0
xpu xpu-ccl-provider EXCEPTION: can not create network providers, please check that all libfabric providers
habana gaudi-not-usable habanalabs 0000:1a:00.0: Failed to initialize hl2. Device is NOT usable !
cpu cpu-onednn-primitive RuntimeError: "addmm_impl_cpu_" not implemented for 'Half'
cpu cpu-image-of-gpus Failed to import from vllm._C with ImportError('libcuda.so.1: cannot open shared object file:
"""
"""Lines of public reports, shortened, each below its accelerator and the one entry that explains it."""

NEAR_MISSES = """
cuda hub-no-such-model HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x'
cuda cuda-no-container-toolkit could not select device driver "" with capabilities: [[gpu]].
rocm docker-cdi-off could not select device driver "cdi" with capabilities: []
cpu cpu-no-kernels Failed to import from vllm._C: ModuleNotFoundError("No module named 'vllm._C'")
cuda - INFO: loading lora adapter sql, 0 failed requests
cuda - Buffer size 16 must be a multiple of 8
xpu - failed to start worker threads of the pool
ascend - npu-smi info was run 3 times
cuda - NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-abc (size 192814336), error: No such file
cuda - FileNotFoundError: [Errno 2] No such file or directory: '/models/.cache.json'
cuda - error: failed to create directory `/models`: File exists (os error 17)
cuda - RuntimeError: CUDA error: initialization error
cuda - TLS Handshake with registry failed
tpu - INFO TPU initialization took 3.2 s
rocm - cat: /dev/kfd: Invalid argument
rocm rocm-tensile rocBLAS error: Could not load TensileLibrary_lazy_gfx1103.dat
rocm rocm-tensile rocBLAS error: Could not initialize Tensile library
rocm rocm-no-gpu Unable to open /dev/kfd read-write: No such file or directory
rocm - open /dev/kfd: read 4096 bytes
cuda out-of-memory-killed process /usr/bin/python3 terminated with signal 9
cuda cuda-no-gpu ImportError: libcuda.so.1: cannot open shared object file: No such file or directory
cuda cuda-no-gpu pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found
cuda cuda-unknown-device-id nvidia-container-cli: device error: 9: unknown device: unknown
cuda cuda-cdi unresolvable CDI devices nvidia.com/gpu=all
cuda - INFO[0000] Selecting /dev/nvidia0 as /dev/nvidia0
cuda - stat /models/nvidia.com: no such file or directory
cuda cuda-out-of-memory torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 666.00 MiB
cuda - CUDA Error: invalid argument at /workspace/csrc/cumem_allocator.cpp:57
cuda - wake_up method took 0.3 s
cuda - PermissionError: [Errno 13] Permission denied: '/models/Qwen3/config.json'
cuda - PermissionError: [Errno 13] Permission denied: '/home/models/Qwen3/config.json'
cuda - Permission denied (publickey).
cuda cache-not-writable PermissionError: [Errno 13] Permission denied: '/cache/hub'
cuda compile-failed torch._inductor.exc.InductorError: LoweringException: KeyError: 'x'
cuda - 403 Client Error: Forbidden for url: https://api.example.com/v1/models
cuda - 401 Client Error: Unauthorized for url: https://registry.example.com/v2/
cuda hub-login 401 Client Error: Unauthorized for url: https://hf-mirror.com/meta/x/resolve/main/config.json
cuda hub-login 403 Client Error. (Request ID: Root=1-66b2)
cuda disk-full CAS service error : IO Error: No space left on device (os error 28)
cuda cache-not-writable CAS service error : IO Error: Permission denied (os error 13)
cuda - hyper::Error(Body, Custom { kind: UnexpectedEof, error: IncompleteBody })
cuda - 416 requests were answered, range 1 to 9
cuda hub-rate-limit 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/x
cuda - downloading from https://transfer.xethub.hf.co/xorbs/default/63e4
cuda peer-unreachable RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error
cuda - [Gloo] Rank 0 is connected to 7 peer ranks, remote=[127.0.0.1]
cuda no-such-interface RuntimeError: Unable to find address for: eth1
cuda name-resolution [Errno -3] Temporary failure in name resolution
cuda - [c10d] The server socket has started to listen on [::]:29500
cuda - KeyboardInterrupt
cuda - INFO: Ray is connected to GCS at 10.0.0.1:6379
cuda - ValueError: Version mismatch: expected 2, got 1
cuda - kernel: segfault handler installed
cuda - error running hooks of pre-commit
cuda - Local protection on the host is switched on
cuda no-host-memory OSError: [Errno 12] Cannot allocate memory
cuda kv-transfer nixlBackendError: NIXL_ERR_BACKEND
cuda ucx-no-transport UCX ERROR no active messages transport to <no debug data>: self/memory
cuda - UCX  INFO    ucp_context_2 inter-node cfg#3 rma(rc_mlx5/mlx5_ib2:1)
cuda - Found 8 RDMA devices; transfer engine uses address 10.0.0.1
cuda - misc/socket.cc:300 NCCL WARN Call to bind failed: Address already in use
cuda - NCCL INFO NET/IB : Using [0]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
cuda nccl-fabric NCCL WARN Call to ibv_modify_qp failed with error No such device
cuda size-not-divisible AssertionError: 28 is not divisible by 8
cuda quantised-block The output_size of weight = 192 is not divisible by weight quantization block_n = 128.
cuda - 4 processes were forked
ascend - loaded /usr/local/Ascend/lib64/libhccl.so
ascend ascend-no-driver-libraries ImportError: libascend_hal.so: cannot open shared object file
ascend ascend-no-atb ImportError: libatb.so: cannot open shared object file
ascend library-symbol vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb
ascend ascend-model-execution NPU function error, error code is 507011
ascend - AttributeError: module 'torch' has no attribute 'npu'
ascend ascend-hccl-transport Transport init error! createLink para:rank[1], linkMode[1], isUsedRdma[0]
xpu library-of-newer-system libc.so.6: version `GLIBC_2.38' not found
xpu xpu-out-of-memory level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)
neuron - nrt_load status=0, 1004 requests
neuron neuron-hardware Failure: NRT_EXEC_HW_ERR_HBM_UE in nrt_execute()
neuron neuron-queue-overflow Failure: NRT_EXEC_SW_NQ_OVERFLOW in nrt_execute()
tpu tpu-busy TPU initialization failed: open(/dev/vfio/1): Device or resource busy
tpu - TPU worker hostname is t1v-n-0
tpu tpu-mmap Couldn't mmap: Operation not permitted
habana gaudi-acquire-busy synStatus=20 [Device already acquired] Device acquire failed.
habana - Device acquire took 3 s
cuda - UCX  INFO  connect(fd=87, dest_addr=10.0.0.1:47133) is in progress
cuda - nixl_agent.cpp:259] createBackend: backend 'UCX' was made
cuda - NCCL INFO NET/IB : Got async event : client reregistration
cuda - Unexpected UCX error: Unsupported operation
cuda - Error response from daemon: could not select device driver "foo" with capabilities: []
cuda - Bad message: the request has no role
cuda - UCX  DEBUG opened ipc mem handle. addr:0x7f65a8000000 len:16777216
cuda - error sending request for url (http://10.0.0.4:8000/v1/models): client::legacy::Error(Connect, refused)
cuda - 504 Server Error: Gateway Time-out for url: http://10.0.0.4:8000/v1/chat/completions
cuda - 404 Client Error: Not Found for url: http://10.0.0.4:8000/v1/models
cuda - KeyError: 'weight'
cuda - JSONDecodeError: Expecting value: line 1 column 1 (char 0)
cuda - integrity check of the image passed
cuda - Your authentication has expired
cuda - ray: 2 Workers started at node
cuda - The task cannot be scheduled right now
cuda - permission denied for user postgres
cuda - vllm.service: Failed with result 'exit-code'.
cuda - quadlet-generator[123]: loading source unit file /etc/containers/systemd/vllm.container
cuda - listen tcp 0.0.0.0:8000 is ready
cuda - Assertion error in a test
cuda - NVIDIA Container Runtime Hook was found
cuda cuda-driver-in-image nvidia-container-cli: mount error: file creation failed: /x/usr/bin/nvidia-smi: file exists
cuda nccl-fabric NCCL WARN Call to ibv_modify_qp failed with error Connection timed out
cuda cuda-nccl-nvls transport/nvls.cc:598 NCCL WARN Cuda failure 'operation not supported'
cuda - the message is too short
cuda - Insufficient balance
cuda hub-xet-cut CAS service error : ReqwestMiddleware Error: Request failed after 5 retries
cuda hub-no-such-model RevisionNotFoundError: 404 Client Error. Revision Not Found for url: https://huggingface.co/a/b
cuda hub-rate-limit 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/y
cuda cuda-kernels-not-compiled RuntimeError: Ninja build failed. Ninja output: nvcc: warning
cuda - fatal error: model.h: No such file or directory
cuda - query execution timeout (30 s)
rocm rocm-fp8-not-supported ValueError: type fp8e4nv not supported in this architecture.
rocm rocm-hardware-exception HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception.
ascend ascend-out-of-memory NPU function error: error code is 207001
ascend - error code is 0
ascend ascend-no-package ModuleNotFoundError: No module named 'torch_npu'
ascend - this platform is supported
neuron neuron-execution Inference completed with err: 1004
neuron - Inference completed with err: 0
xpu xpu-device-lost Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)
cuda media-not-of-model Value error, `limit_mm_per_prompt` is only supported for multimodal models. [type=value_error]
cuda triton-aborted python3: /project/lib/Analysis/Allocation.cpp:40: Assertion `n == 1 && m == 1' failed.
cuda chat-template-broken jinja2.exceptions.UndefinedError: 'dict object' has no attribute 'content'
cuda chat-content-form ERROR [serving_chat.py:198] TypeError: can only concatenate str (not "list") to str
cuda - TypeError: can only concatenate list (not "str") to list
cuda cause-above ERROR:    Exception in ASGI application
cuda speculative-eagle3 AttributeError: 'Eagle3Llama' object has no attribute 'set_aux_hidden_state_layers'
cuda peer-unreachable retrieving ncclUniqueId from [0] via c10d, but store->get('0') got error: Socket Timeout
rocm rocm-invalid-device-function ROCm error: device kernel image is invalid
ascend numpy-too-new A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.6 as it may crash.
ascend ascend-operator-failed RuntimeError: Compile op[trans_Cast_2,] failed
ascend plug-in-differs TypeError: Can't instantiate abstract class NPUWorker with abstract methods get_model
cpu - TypeError: Can't instantiate abstract class Animal with abstract method speak
cpu tensor-shape RuntimeError: The size of tensor a (64) must match the size of tensor b (128) at dimension 1
tpu tpu-library-differs AttributeError: module 'libtpu' has no attribute 'get_library_path'
neuron neuron-compiler-failed CalledProcessError: Command '['neuronx-cc', 'compile']' returned non-zero exit status 70.
cuda - subprocess.CalledProcessError: Command '['x', '-v']' returned non-zero exit status 5.
cuda - the helper's compiler ended with exit code 14
ascend ascend-operator-failed E40021: Failed to compile Op [MatMulV2]. (oppath: [Compile /usr/local/Ascend/opp])
cuda no-space torch._inductor.exc.InductorError: OSError: [Errno 28] No space left on device
cuda out-of-memory-killed Killed
cuda out-of-memory-killed /serve.sh: line 12:  4242 Killed                  vllm serve /models/m
cuda - Killed the old server by hand
cuda - the job was Killed
cuda aborted free(): invalid pointer
cuda plug-in-differs ModuleNotFoundError: No module named 'vllm.transformers_utils.configs.foo'
cuda vllm-of-sources ModuleNotFoundError: No module named 'vllm._C'
cuda flag-value vllm: error: argument --tensor-parallel-size/-tp: invalid int value: 'all'
cuda - usage: the argument of this function has an invalid value
cpu openmp-twice OMP: Error #15: Initializing libomp.so, but found libiomp5.so already initialized.
cuda group-address-not-here zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.1:5557')
cuda port-in-use zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5557')
cuda no-more-threads bash: fork: retry: Resource temporarily unavailable
cuda - read: Resource temporarily unavailable
cuda transformers-too-old ValueError: GGUF model with architecture qwen35 is not supported yet.
cuda pod-image-pull Back-off pulling image "registry.example/vllm:1"
cuda cuda-fabric-manager request to query NVSwitch device information from NVSwitch driver failed with error
neuron neuron-neff-version NEFF version: 2.0, features: 0x100 are not supported.
neuron neuron-neff-version Failed to load NN: /tmp/w/model.MODULE_f412.neff, err: 10
tpu - AttributeError: 'Tensor' object has no attribute 'foo'
cpu - TypeError: 'int' object is not subscriptable
cpu - could not create a folder
cuda - NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06
cuda - 507057
cuda - data did not match any variant of untagged enum Message
cuda - CUDA_HOME environment variable is /usr/local/cuda
cuda - 8 devices were found
cuda - CUDA error: invalid argument
cuda - The attention sinks of this model are supported
cuda - ValueError: invalid Config
cuda cuda-mps CUDA error: MPS server is not ready to accept new MPS client requests
rocm - amdgpu 0000:83:00.0: amdgpu: 0 correctable hardware errors detected in umc block
rocm - HIP error: invalid argument
ascend - error code is 5070461
ascend - rtKernelLaunchWithHandleV2 took 507046 us
ascend - 8020 requests, ret is 0
ascend ascend-core-exception NPU function error: error code is 507017
neuron - nrt_execute status=0
neuron - nrt_load status=100
neuron neuron-hardware Inference completed with err: 1205. mode->h_nn=1001
habana - Habana exception handler was installed
"""
"""Lines with the same words and another cause: the entry that explains them, or - where nothing does."""


def split_lines(table: str) -> list[tuple[str, str, str]]:
    """Return accelerator, entry and line of each row."""
    rows = (row.split(" ", 2) for row in table.strip().split("\n"))
    return [(accelerator, name, line) for accelerator, name, line in rows]


@for_each(split_lines(KNOWN_LINES + NEAR_MISSES.strip()), str)
def test_a_line_has_its_own_explanation_or_none(accelerator: str, name: str, line: str) -> None:
    assert explain_ids(line, accelerator) == ([] if name == "-" else [name])


MOOT = {
    ("ascend", "DrvMngGetConsoleLogLevel failed.\nbecause the device is used. ret is -8020"): "ascend-npu-in-use",
    ("cuda", "InductorError: PermissionError: [Errno 13] Permission denied: '/.triton'\nBackendCompilerFailed: x"): (
        "home-not-writable"
    ),
    ("cuda", "UCX  ERROR Local protection error on mlx5_0:1/RoCE (synd 0x4)\nnixlBackendError: NIXL_ERR_BACKEND"): (
        "rdma-gpu-memory"
    ),
    ("cuda", "nixlBackendError: NIXL_ERR_BACKEND\nibv_reg_mr(address=0x7f) failed: Cannot allocate memory"): (
        "rdma-memory"
    ),
    ("cuda", "hook #0: stderr: nvml error: driver not loaded\nRuntimeError: Failed to infer device type"): (
        "cuda-host-driver"
    ),
    ("rocm", "ROCk module is NOT loaded, possibly no GPU devices\nRuntimeError: No HIP GPUs are available"): (
        "rocm-driver-not-loaded"
    ),
    ("rocm", "Unable to open /dev/kfd read-write: Permission denied\nHSA_STATUS_ERROR_OUT_OF_RESOURCES"): (
        "rocm-no-gpu"
    ),
    ("cuda", "Unable to resolve hostname to a (local) address\nGloo connectFullMesh failed with [pair.cc:144]"): (
        "gloo-loopback"
    ),
    ("tpu", "Unable to initialize backend 'tpu'\nINVALID_ARGUMENT: Error: unexpected worker hostname"): (
        "tpu-worker-names"
    ),
    ("cuda", "UCX ERROR connect(fd=8, dest_addr=172.17.0.1:4) failed: x\nnixlBackendError: NIXL_ERR_BACKEND"): (
        "ucx-peer-not-reached"
    ),
    ("cuda", "killed due to memory pressure (OOM)\nA worker died or was killed while executing a task"): "ray-memory",
    ("cuda", "NVRM: Xid (PCI:0000:18:00): 13, pid=9, x\nNVRM: Xid (PCI:0000:18:00): 45, pid=9, x"): "cuda-xid-program",
    ("ascend", "EH9999: Inner Error!\nrtSetStreamFailureMode failed, runtime result = 207000"): (
        "ascend-feature-missing"
    ),
}


@for_each([(*log, cause) for log, cause in MOOT.items()], str)
def test_what_another_cause_of_the_log_explains_is_not_shown(accelerator: str, log: str, cause: str) -> None:
    assert explain_ids(log, accelerator) == [cause]


FOREIGN = {
    "HIP error: no kernel image is available for execution on the device": ("rocm-invalid-device-function", "rocm"),
    "CUDA error: no kernel image is available for execution on the device": ("cuda-no-kernel-image", "cuda"),
    "HIP error: device-side assert triggered": ("rocm-illegal-memory-access", "rocm"),
    "HIP error: an illegal memory access was encountered": ("rocm-illegal-memory-access", "rocm"),
    "NCCL WARN HIP failure 'peer access is not supported between these two devices'": ("rocm-no-peer-access", "rocm"),
    "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your AMD GPU has 7.0": (
        "rocm-no-bfloat16",
        "rocm",
    ),
}


@for_each([(line, *owner) for line, owner in FOREIGN.items()], str)
def test_an_image_of_another_accelerator_names_the_one_that_the_line_is_of(
    line: str, name: str, accelerator: str
) -> None:
    assert [(match.id, match.accelerator) for match in explain_log(line, PROFILES["cpu"])] == [(name, accelerator)]


def test_a_code_of_another_accelerator_is_explained_where_a_line_says_of_which_table() -> None:
    (match,) = explain_log("NPU function error, error code is 507046", CUDA)

    assert (match.id, match.accelerator) == ("ascend-stream-timeout", "ascend")


def test_a_line_of_another_accelerator_is_explained_and_says_of_which() -> None:
    (match,) = explain_log("RuntimeError: No HIP GPUs are available", PROFILES["ascend"])

    assert (match.id, match.accelerator) == ("rocm-no-gpu", "rocm")
    assert "of accelerator rocm, not of this image's:" in format_matches((match,), {})
    (own,) = explain_log("RuntimeError: No HIP GPUs are available", PROFILES["rocm"])
    assert own.accelerator == ""


def test_other_accelerators_are_asked_only_where_the_image_knows_no_cause() -> None:
    foreign, known = "RuntimeError: No HIP GPUs are available", "torch.OutOfMemoryError: CUDA out of memory."

    assert explain_ids(f"{foreign}\n{known}") == ["cuda-out-of-memory"]
    assert explain_ids(f"{foreign}\nRuntimeError: Engine core initialization failed.") == ["rocm-no-gpu", "cause-above"]
    assert explain_ids("ERR99999 UNKNOWN\nRuntimeError: Engine core initialization failed.") == ["cause-above"]


def test_progress_of_an_engine_that_starts_is_no_busy_core() -> None:
    assert explain_ids("(EngineCore pid=9) Loading safetensors checkpoint shards: 100% Completed | 2/2") == []


def test_a_queue_that_is_polled_while_requests_run_is_a_note() -> None:
    (match,) = explain_log("    wait (vllm/distributed/device_communicators/shm_broadcast.py:196)", CUDA)

    assert (match.id, match.kind) == ("message-queue-busy", "note")


UNHANDLED = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"


WARNINGS_OF_NCCL = {
    ("cuda", "NCCL WARN Cuda failure 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "transport/p2p.cc:226 NCCL WARN Cuda failure 2 'out of memory'"): "cuda-nccl-out-of-memory",
    ("cuda", "transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot'"): "cuda-nccl-nvls",
    ("cuda", "NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152"): "cuda-nccl-nvls",
    ("cuda", "transport/p2p.cc:275 NCCL WARN Cuda failure 1 'invalid argument'"): "cuda-no-peer-access",
    (
        "cuda",
        "NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
    ): "cuda-no-peer-access",
    ("cuda", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ew"): "shared-memory-full",
    ("cuda", "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both"): "nccl-duplicate-device",
    ("cuda", "NCCL WARN Bootstrap : no socket interface found"): "no-such-interface",
    ("cuda", "NCCL WARN socketStartConnect: Connect to 10.0.0.1<4> failed : No route to host"): "nccl-peer-not-reached",
    ("rocm", "NCCL WARN HIP failure 'out of memory'"): "rocm-nccl-out-of-memory",
    ("rocm", "NCCL WARN HIP failure 'peer access is not supported between these two devices'"): "rocm-no-peer-access",
    ("rocm", "NCCL WARN Mismatched NCCL version detected : rank 1 version 22203"): "nccl-versions-differ",
}


@for_each([(*line, cause) for line, cause in WARNINGS_OF_NCCL.items()], str)
def test_a_line_of_nccl_before_the_error_is_the_cause_and_the_error_follows(
    accelerator: str, line: str, cause: str
) -> None:
    first, second = explain_log(f"{line}\n{UNHANDLED}", PROFILES[accelerator])

    assert (first.id, first.kind) == (cause, "cause")
    assert (second.id, second.kind) == (f"{accelerator}-nccl-cuda-error", "consequence")
    text = format_matches((first, second), {})
    assert second.remedy not in text
    assert "This follows from the cause above." in text


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1a2b'",
        "RuntimeError: Insufficient space in /dev/shm for MessageQueue: 40 MiB required, 30 MiB free.",
        "RuntimeError: unable to write to file </torch_21_1532>: No space left on device (28)",
        "FileExistsError: /dev/shm/nccl-x: No space left on device",
        "Fatal Python error: Bus error",
    ],
)
def test_full_shared_memory_is_told_apart_from_a_full_disk(line: str) -> None:
    (match,) = explain_log(f"{line}\nOSError: [Errno 28] No space left on device", CUDA)[:1]

    assert match.id in ("shared-memory-full", "bus-error")
    assert "--shm-size" in match.remedy
    assert "/cache" not in match.remedy + match.cause
    assert "--ipc=host" not in match.remedy


def test_a_full_disk_is_known_by_its_path_or_else_asked_for() -> None:
    assert explain_ids("OSError: [Errno 28] No space left on device: '/cache/hub/x'") == ["disk-full"]
    (match,) = explain_log("OSError: [Errno 28] No space left on device", CUDA)
    assert match.id == "no-space"
    assert "/cache" not in match.remedy


def test_causes_come_before_consequences_and_notes_come_last() -> None:
    log = (
        "WARNING: Found ulimit of 20000 and failed to increase it\nINFO fine\n"
        "ERROR [serving.py:1] At most 1 image(s) may be provided in one prompt.\n"
        "(APIServer pid=2) RuntimeError: Engine core initialization failed. See root cause above.\n"
        "\x1b[1;31m(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA \x1b[0mout of memory. Tried\n"
        "CUDA out of memory\ndrydock: ended with exit code 9: it ended\n"
    )
    matches = explain_log(log, CUDA)

    assert [(match.id, match.kind) for match in matches] == [
        ("cuda-out-of-memory", "cause"),
        ("cause-above", "consequence"),
        ("exit-died", "consequence"),
        ("too-many-files", "note"),
        ("too-many-images", "note"),
    ]
    first = matches[0]
    assert first.line == "(EngineCore pid=1) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried"
    assert first.source.startswith("https://")
    assert f"{first.line}\n        {first.cause}\n" in format_matches((first,), {})


def test_a_finding_that_failed_is_a_cause_and_one_that_warns_is_a_note() -> None:
    log = "WARN    NET-001  no name server fix (host): name one\nFAIL    RUN-005  64 MiB fix (container): more\n"

    assert [(match.id, match.kind) for match in explain_log(log, CUDA)] == [("RUN-005", "cause"), ("NET-001", "note")]


@pytest.mark.parametrize("finding", sorted(KNOWN))
def test_every_finding_is_explained_by_its_id(finding: str) -> None:
    assert [match.id for match in explain_log(finding, CUDA)] == [finding]


def test_a_value_of_a_finding_is_left_open_where_no_check_has_read_it() -> None:
    number = next(number for number, entry in KNOWN.items() if "{" in entry["text"])
    (match,) = explain_log(number, CUDA)

    assert "…" in match.cause
    assert "{" not in match.cause + match.remedy


def test_the_most_specific_failure_of_a_line_is_the_one() -> None:
    warm = "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    assert explain_ids(warm) == ["warm-up-memory"]
    assert explain_ids("EZ9999: numHeads / numKvHeads = 8, MLA only support {32, 64, 128}.", "ascend") == [
        "ascend-mla-heads"
    ]
    assert explain_ids("EZ9999: Inner Error!", "ascend") == ["ascend-operator-failed"]


def test_nothing_that_is_shown_names_a_file_of_the_repository() -> None:
    for profile in PROFILES.values():
        for failure in profile["failures"].values():
            text = format_matches(explain_log(failure["symptom"], profile), {})
            assert not re.search(r"(?m)^ +(?:source|more): (?!https://)", text)


def test_pieces_of_a_pattern_are_found_in_their_order_on_one_line() -> None:
    assert explain_ids("Free memory on device cuda:1 (3/79 GiB) is less than desired GPU memory utilization (0.9)")
    assert not explain_ids("is less than desired GPU memory utilization; Free memory on device")
    assert not explain_ids("Free memory on device\nis less than desired GPU memory utilization")


def test_a_long_line_is_shown_around_its_words() -> None:
    (match,) = explain_log(f"{'x' * 5000} CUDA out of memory {'y' * 5000}", CUDA)

    assert match.line.startswith("…")
    assert "CUDA out of memory" in match.line
    assert len(match.line) < 400


def test_the_first_error_of_an_unknown_log_is_named() -> None:
    log = "INFO ok\n(EngineCore_DP0 pid=3) ERROR 11-26 [core.py:1] foo.bar.StrangeError: no such thing\nKeyError: 'x'\n"

    assert find_first_error(log).endswith("foo.bar.StrangeError: no such thing")
    assert find_first_error("all is well") == ""


@pytest.mark.parametrize(
    "text",
    [
        "Free memory on device" * 150_000,
        "a\n" * 1_500_000,
        "\n".join(map(str, range(400_000))),
        "\x1b[" * 1_000_000,
        "exit code exit code " * 150_000,
        "Free memory on device\n" * 140_000,
        '{"log": ' * 400_000,
        '{"log":"' + "[" * 900_000 + '"}\n',
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "a." * 1_500_000 + "Error",
        bytes(range(256)).decode("latin-1") * 12_000,
    ],
    ids=["repeated", "lines", "numbers", "escapes", "codes", "many", "json", "nested", "deep", "names", "binary"],
)
def test_no_text_makes_the_search_slow(text: str) -> None:
    log = read_log(io.BytesIO(text.encode()))
    began = time.process_time()
    output = format_matches(explain_log(log, CUDA), {}) + find_first_error(log)

    assert time.process_time() - began < SLOW
    assert "\x1b" not in output


def test_an_image_without_failures_explains_findings_only() -> None:
    bare = add_failures(PROFILE | {"findings": KNOWN}, {})

    assert [match.id for match in explain_log("exit code 137\nNET-001", bare)] == ["NET-001"]
    assert json.dumps([match._asdict() for match in explain_log("NET-001", bare)])
