/* What is used of CUDA's driver, declared by ourselves: libcuda.so.1 is loaded at run time, and the build needs neither
 * it nor its header. Names and values are the driver's with KVF_ before them; drivers from KVF_CUDA_VERSION_MIN on have
 * this interface. tests/unit/memory/cuda_abi_test.c compares it with CUDA's own header.
 */
#ifndef KVF_MEMORY_CUDA_CUDA_API_H
#define KVF_MEMORY_CUDA_CUDA_API_H

#include <stddef.h>
#include <stdint.h>

/* As cuDriverGetVersion() says it: 1000 * major + 10 * minor. */
#define KVF_CUDA_VERSION_MIN 12000
#define KVF_CUDA_VERSION_BATCH 12080 /* from here on there is cuMemcpyBatchAsync, in this form */

/* Enumerations have no negative values there: compilers take them for this type. */
typedef unsigned kvf_cu_result;
typedef int kvf_cu_device;                /* an ordinal: of this process, by its CUDA_VISIBLE_DEVICES */
typedef unsigned long long kvf_cu_memory; /* an address, of a device or of pinned host memory */
typedef unsigned long long kvf_cu_allocation;
typedef struct CUctx_st *kvf_cu_context;
typedef struct CUstream_st *kvf_cu_stream; /* or a number of KVF_CU_STREAM_, on which engines work, too */
typedef struct CUevent_st *kvf_cu_event;
typedef struct CUmod_st *kvf_cu_module;
typedef struct CUfunc_st *kvf_cu_function;

enum {
  KVF_CUDA_SUCCESS = 0,
  KVF_CUDA_ERROR_INVALID_VALUE = 1,
  KVF_CUDA_ERROR_OUT_OF_MEMORY = 2,
  KVF_CUDA_ERROR_NOT_INITIALIZED = 3,
  KVF_CUDA_ERROR_DEINITIALIZED = 4,
  KVF_CUDA_ERROR_STUB_LIBRARY = 34,
  KVF_CUDA_ERROR_NO_DEVICE = 100,
  KVF_CUDA_ERROR_INVALID_DEVICE = 101,
  KVF_CUDA_ERROR_INVALID_CONTEXT = 201,
  KVF_CUDA_ERROR_MAP_FAILED = 205,
  KVF_CUDA_ERROR_ALREADY_MAPPED = 208,
  KVF_CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  KVF_CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  KVF_CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  KVF_CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
  KVF_CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  KVF_CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
  KVF_CUDA_ERROR_CONTAINED = 226,
  KVF_CUDA_ERROR_OPERATING_SYSTEM = 304,
  KVF_CUDA_ERROR_INVALID_HANDLE = 400,
  KVF_CUDA_ERROR_NOT_FOUND = 500,
  KVF_CUDA_ERROR_NOT_READY = 600,
  KVF_CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  KVF_CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  KVF_CUDA_ERROR_ASSERT = 710,
  KVF_CUDA_ERROR_TOO_MANY_PEERS = 711,
  KVF_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  KVF_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  KVF_CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  KVF_CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  KVF_CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  KVF_CUDA_ERROR_INVALID_ADDRESS_SPACE = 717,
  KVF_CUDA_ERROR_INVALID_PC = 718,
  KVF_CUDA_ERROR_LAUNCH_FAILED = 719,
  KVF_CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  KVF_CUDA_ERROR_NOT_PERMITTED = 800,
  KVF_CUDA_ERROR_NOT_SUPPORTED = 801,
  KVF_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  KVF_CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  KVF_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906, /* of the legacy stream, while another is being captured */
  KVF_CUDA_ERROR_CAPTURED_EVENT = 907,
  KVF_CUDA_ERROR_EXTERNAL_DEVICE = 911,
  KVF_CUDA_ERROR_UNKNOWN = 999
};

enum {
  KVF_CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
  KVF_CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
  KVF_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  KVF_CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
  KVF_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  KVF_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  KVF_CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  KVF_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  KVF_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
  KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118, /* one of KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ */
  KVF_CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,             /* by which IPC as a whole is asked for */
  KVF_CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134                     /* -1: there is none */
};

/* For cuPointerGetAttributes(): give each 8 zeroed bytes, since CUDA's documents do not say how many it writes, and its
 * users differ. An address that is not CUDA's is no error: its memory type is 0. */
enum {
  KVF_CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2, /* one of KVF_CU_MEMORYTYPE_ */
  KVF_CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  KVF_CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID = 7, /* no other allocation in the process' life has it */
  KVF_CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  KVF_CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11, /* of the reservation, with cuMemMap() */
  KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  KVF_CU_POINTER_ATTRIBUTE_MAPPED = 13,
  KVF_CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14 /* a bit each, KVF_CU_MEM_HANDLE_TYPE_ */
};

enum { KVF_CU_MEMORYTYPE_HOST = 1, KVF_CU_MEMORYTYPE_DEVICE = 2, KVF_CU_MEMORYTYPE_UNIFIED = 4 };
/* Streams of the current context that nobody creates: the legacy default stream, also as NULL, and the calling thread's
 * own. */
enum { KVF_CU_STREAM_LEGACY = 1, KVF_CU_STREAM_PER_THREAD = 2 };
enum { KVF_CU_STREAM_DEFAULT = 0, KVF_CU_STREAM_NON_BLOCKING = 1 };
enum { KVF_CU_STREAM_CAPTURE_MODE_GLOBAL = 0, KVF_CU_STREAM_CAPTURE_MODE_RELAXED = 2 };
enum { KVF_CU_STREAM_CAPTURE_STATUS_NONE = 0, KVF_CU_STREAM_CAPTURE_STATUS_ACTIVE = 1 };
enum { KVF_CU_EVENT_DEFAULT = 0, KVF_CU_EVENT_BLOCKING_SYNC = 1, KVF_CU_EVENT_DISABLE_TIMING = 2 };
enum { KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 }; /* cuIpcOpenMemHandle() demands it */
enum { KVF_CU_MEMHOSTALLOC_PORTABLE = 1 };
enum { KVF_CU_MEMHOSTREGISTER_PORTABLE = 1, KVF_CU_MEMHOSTREGISTER_DEVICEMAP = 2 };
enum { KVF_CU_GET_PROC_ADDRESS_DEFAULT = 0 };

enum {
  KVF_CU_MEM_HANDLE_TYPE_NONE = 0,
  KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  KVF_CU_MEM_HANDLE_TYPE_FABRIC = 8
};
enum { KVF_CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum { KVF_CU_MEM_LOCATION_TYPE_DEVICE = 1, KVF_CU_MEM_LOCATION_TYPE_HOST = 2 };
enum {
  KVF_CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  KVF_CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
};

/* For whom a network's writes into the device's memory are in order with what follows them: who sees the one sees the
 * other. It is also for whom a flush makes them so. */
enum {
  KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE = 0,
  KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100,
  KVF_CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES = 200
};
enum { KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0 };
enum { KVF_CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100 };

/* When the source is read: at its turn in the stream; before the call returns; or at any time after the call began. */
enum {
  KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM = 1,
  KVF_CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL = 2,
  KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY = 3
};

typedef struct kvf_cu_uuid {
  uint8_t bytes[16];
} kvf_cu_uuid;

typedef struct kvf_cu_ipc_mem_handle {
  uint8_t reserved[64];
} kvf_cu_ipc_mem_handle;

typedef struct kvf_cu_mem_location {
  unsigned type;
  int id; /* of a device: its ordinal */
} kvf_cu_mem_location;

typedef struct kvf_cu_mem_access_desc {
  kvf_cu_mem_location location;
  unsigned flags;
} kvf_cu_mem_access_desc;

/* What cuMemCreate() takes: tests alone make such memory. */
typedef struct kvf_cu_mem_allocation_prop {
  unsigned type;
  unsigned requested_handle_types;
  kvf_cu_mem_location location;
  void *win32_handle_meta_data;
  struct {
    uint8_t compression_type;
    uint8_t gpu_direct_rdma_capable;
    uint16_t usage;
    uint8_t reserved[4];
  } alloc_flags;
} kvf_cu_mem_allocation_prop;

typedef struct kvf_cu_memcpy_attributes {
  unsigned src_access_order;
  kvf_cu_mem_location src_loc_hint; /* both are for managed and pageable memory alone */
  kvf_cu_mem_location dst_loc_hint;
  unsigned flags;
} kvf_cu_memcpy_attributes;

/* The functions, found in the library. */
typedef struct kvf_cuda_api {
  kvf_cu_result (*init)(unsigned flags);
  kvf_cu_result (*driver_get_version)(int *version);
  kvf_cu_result (*get_error_name)(kvf_cu_result error, const char **name); /* *name: NULL where it knows none */
  kvf_cu_result (*get_proc_address)(const char *symbol, void **function, int version, uint64_t flags,
                                    unsigned *symbol_status);

  kvf_cu_result (*device_get_count)(int *count);
  kvf_cu_result (*device_get)(kvf_cu_device *device, int ordinal);
  kvf_cu_result (*device_get_name)(char *name, int bytes, kvf_cu_device device);
  kvf_cu_result (*device_get_uuid)(kvf_cu_uuid *uuid, kvf_cu_device device); /* of a MIG device: its own */
  kvf_cu_result (*device_get_attribute)(int *value, unsigned attribute, kvf_cu_device device);
  kvf_cu_result (*device_can_access_peer)(int *can, kvf_cu_device device, kvf_cu_device peer);
  kvf_cu_result (*device_primary_ctx_retain)(kvf_cu_context *context, kvf_cu_device device);
  kvf_cu_result (*device_primary_ctx_release)(kvf_cu_device device);
  kvf_cu_result (*ctx_push_current)(kvf_cu_context context);
  kvf_cu_result (*ctx_pop_current)(kvf_cu_context *context);
  kvf_cu_result (*flush_gpu_direct_rdma_writes)(unsigned target, unsigned scope);

  kvf_cu_result (*pointer_get_attributes)(unsigned count, unsigned *attributes, void **data, kvf_cu_memory address);
  kvf_cu_result (*mem_get_address_range)(kvf_cu_memory *base, size_t *bytes, kvf_cu_memory address);
  kvf_cu_result (*ipc_get_mem_handle)(kvf_cu_ipc_mem_handle *handle, kvf_cu_memory address);
  kvf_cu_result (*ipc_open_mem_handle)(kvf_cu_memory *address, kvf_cu_ipc_mem_handle handle, unsigned flags);
  kvf_cu_result (*ipc_close_mem_handle)(kvf_cu_memory address);

  /* Lower numbers come first, 0 is the usual; one that the device does not have counts as the nearest that it has. */
  kvf_cu_result (*stream_create_with_priority)(kvf_cu_stream *stream, unsigned flags, int priority);
  kvf_cu_result (*stream_destroy)(kvf_cu_stream stream);
  kvf_cu_result (*stream_wait_event)(kvf_cu_stream stream, kvf_cu_event event, unsigned flags);
  /* Ends no capture, not even where it fails. */
  kvf_cu_result (*stream_is_capturing)(kvf_cu_stream stream, unsigned *status);
  /* *mode becomes the thread's, and what it was. RELAXED: calls that wait or allocate do not end others' captures. */
  kvf_cu_result (*thread_exchange_stream_capture_mode)(unsigned *mode);
  kvf_cu_result (*event_create)(kvf_cu_event *event, unsigned flags);
  kvf_cu_result (*event_destroy)(kvf_cu_event event);
  kvf_cu_result (*event_record)(kvf_cu_event event, kvf_cu_stream stream);
  kvf_cu_result (*event_query)(kvf_cu_event event);
  kvf_cu_result (*event_synchronize)(kvf_cu_event event);

  kvf_cu_result (*memcpy_async)(kvf_cu_memory to, kvf_cu_memory from, size_t bytes, kvf_cu_stream stream);
  /* NULL: the driver is older than KVF_CUDA_VERSION_BATCH. Copies of one batch come in no order; attributes[i] is of
   * those from first[i] on. Not on the legacy stream. */
  kvf_cu_result (*memcpy_batch_async)(kvf_cu_memory *to, kvf_cu_memory *from, size_t *bytes, size_t count,
                                      kvf_cu_memcpy_attributes *attributes, size_t *first, size_t attributes_count,
                                      size_t *fail_index, kvf_cu_stream stream);
  /* Pinned, and at the same address for the host and all devices. */
  kvf_cu_result (*mem_host_alloc)(void **address, size_t bytes, unsigned flags);
  kvf_cu_result (*mem_free_host)(void *address);
  /* Whole pages, which it pins where they are; CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: at the same address for
   * the host and all devices. */
  kvf_cu_result (*mem_host_register)(void *address, size_t bytes, unsigned flags);
  kvf_cu_result (*mem_host_unregister)(void *address);

  kvf_cu_result (*mem_retain_allocation_handle)(kvf_cu_allocation *allocation, void *address);
  kvf_cu_result (*mem_export_to_shareable_handle)(void *handle, kvf_cu_allocation allocation, unsigned type,
                                                  unsigned long long flags);
  /* Of a file descriptor: (void *)(uintptr_t)fd, which stays the caller's. */
  kvf_cu_result (*mem_import_from_shareable_handle)(kvf_cu_allocation *allocation, void *handle, unsigned type);
  kvf_cu_result (*mem_address_reserve)(kvf_cu_memory *address, size_t bytes, size_t alignment, kvf_cu_memory wanted,
                                       unsigned long long flags);
  kvf_cu_result (*mem_address_free)(kvf_cu_memory address, size_t bytes);
  kvf_cu_result (*mem_map)(kvf_cu_memory address, size_t bytes, size_t offset, kvf_cu_allocation allocation,
                           unsigned long long flags);
  kvf_cu_result (*mem_unmap)(kvf_cu_memory address, size_t bytes);
  kvf_cu_result (*mem_set_access)(kvf_cu_memory address, size_t bytes, const kvf_cu_mem_access_desc *access,
                                  size_t count);
  kvf_cu_result (*mem_release)(kvf_cu_allocation allocation);

  kvf_cu_result (*module_load_data)(kvf_cu_module *module, const void *image);
  kvf_cu_result (*module_unload)(kvf_cu_module module);
  kvf_cu_result (*module_get_function)(kvf_cu_function *function, kvf_cu_module module, const char *name);
  kvf_cu_result (*launch_kernel)(kvf_cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 kvf_cu_stream stream, void **arguments, void **extra);
} kvf_cuda_api;

/* CALL(symbol, field) of each function that every driver has. The symbol has the version that is declared above, which
 * may have a number in its name. */
#define KVF_CUDA_CALLS(CALL)                                                   \
  CALL(cuInit, init)                                                           \
  CALL(cuDriverGetVersion, driver_get_version)                                 \
  CALL(cuGetErrorName, get_error_name)                                         \
  CALL(cuGetProcAddress_v2, get_proc_address)                                  \
  CALL(cuDeviceGetCount, device_get_count)                                     \
  CALL(cuDeviceGet, device_get)                                                \
  CALL(cuDeviceGetName, device_get_name)                                       \
  CALL(cuDeviceGetUuid_v2, device_get_uuid)                                    \
  CALL(cuDeviceGetAttribute, device_get_attribute)                             \
  CALL(cuDeviceCanAccessPeer, device_can_access_peer)                          \
  CALL(cuDevicePrimaryCtxRetain, device_primary_ctx_retain)                    \
  CALL(cuDevicePrimaryCtxRelease_v2, device_primary_ctx_release)               \
  CALL(cuCtxPushCurrent_v2, ctx_push_current)                                  \
  CALL(cuCtxPopCurrent_v2, ctx_pop_current)                                    \
  CALL(cuFlushGPUDirectRDMAWrites, flush_gpu_direct_rdma_writes)               \
  CALL(cuPointerGetAttributes, pointer_get_attributes)                         \
  CALL(cuMemGetAddressRange_v2, mem_get_address_range)                         \
  CALL(cuIpcGetMemHandle, ipc_get_mem_handle)                                  \
  CALL(cuIpcOpenMemHandle_v2, ipc_open_mem_handle)                             \
  CALL(cuIpcCloseMemHandle, ipc_close_mem_handle)                              \
  CALL(cuStreamCreateWithPriority, stream_create_with_priority)                \
  CALL(cuStreamDestroy_v2, stream_destroy)                                     \
  CALL(cuStreamWaitEvent, stream_wait_event)                                   \
  CALL(cuStreamIsCapturing, stream_is_capturing)                               \
  CALL(cuThreadExchangeStreamCaptureMode, thread_exchange_stream_capture_mode) \
  CALL(cuEventCreate, event_create)                                            \
  CALL(cuEventDestroy_v2, event_destroy)                                       \
  CALL(cuEventRecord, event_record)                                            \
  CALL(cuEventQuery, event_query)                                              \
  CALL(cuEventSynchronize, event_synchronize)                                  \
  CALL(cuMemcpyAsync, memcpy_async)                                            \
  CALL(cuMemHostAlloc, mem_host_alloc)                                         \
  CALL(cuMemFreeHost, mem_free_host)                                           \
  CALL(cuMemHostRegister_v2, mem_host_register)                                \
  CALL(cuMemHostUnregister, mem_host_unregister)                               \
  CALL(cuMemRetainAllocationHandle, mem_retain_allocation_handle)              \
  CALL(cuMemExportToShareableHandle, mem_export_to_shareable_handle)           \
  CALL(cuMemImportFromShareableHandle, mem_import_from_shareable_handle)       \
  CALL(cuMemAddressReserve, mem_address_reserve)                               \
  CALL(cuMemAddressFree, mem_address_free)                                     \
  CALL(cuMemMap, mem_map)                                                      \
  CALL(cuMemUnmap, mem_unmap)                                                  \
  CALL(cuMemSetAccess, mem_set_access)                                         \
  CALL(cuMemRelease, mem_release)                                              \
  CALL(cuModuleLoadData, module_load_data)                                     \
  CALL(cuModuleUnload, module_unload)                                          \
  CALL(cuModuleGetFunction, module_get_function)                               \
  CALL(cuLaunchKernel, launch_kernel)

#endif
