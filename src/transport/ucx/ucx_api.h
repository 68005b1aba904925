/* Our declarations of the part of UCX that the transport `ucx` uses. The library is loaded at run time, so the build
 * needs neither it nor its headers. Versions from KVF_UCX_MAJOR.KVF_UCX_MINOR on have this interface; later additions
 * are behind field masks. tests/unit/transport/ucx_abi_test.c compares it with UCX's own headers.
 */
#ifndef KVF_TRANSPORT_UCX_UCX_API_H
#define KVF_TRANSPORT_UCX_UCX_API_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KVF_UCX_MAJOR 1
#define KVF_UCX_MINOR 13

typedef int8_t kvf_ucs_status; /* an enum of one byte there */
typedef void *kvf_ucs_pointer; /* NULL: done; a status; or a request */
typedef void *kvf_ucp_context;
typedef void *kvf_ucp_worker;
typedef void *kvf_ucp_ep;
typedef void *kvf_ucp_mem;
typedef void *kvf_ucp_rkey;
typedef void *kvf_ucp_config;

enum {
  KVF_UCS_OK = 0,
  KVF_UCS_INPROGRESS = 1,
  KVF_UCS_ERR_NO_MEMORY = -4,
  KVF_UCS_ERR_UNREACHABLE = -6,
  KVF_UCS_ERR_NO_DEVICE = -14,
  KVF_UCS_ERR_BUSY = -15,
  KVF_UCS_ERR_CANCELED = -16,
  KVF_UCS_ERR_LAST = -100
};

enum { KVF_UCS_MEMORY_TYPE_HOST = 0, KVF_UCS_MEMORY_TYPE_CUDA = 1 };
enum { KVF_UCS_THREAD_MODE_SINGLE = 0, KVF_UCS_THREAD_MODE_SERIALIZED = 1 };
enum { KVF_UCP_ERR_HANDLING_MODE_PEER = 1 };

#define KVF_UCP_PARAM_FIELD_FEATURES (UINT64_C(1) << 0)
#define KVF_UCP_FEATURE_RMA (UINT64_C(1) << 1)
#define KVF_UCP_FEATURE_WAKEUP (UINT64_C(1) << 4)
#define KVF_UCP_FEATURE_AM (UINT64_C(1) << 6)

typedef struct kvf_ucp_params {
  uint64_t field_mask;
  uint64_t features;
  /* More follows, none of it in our mask. */
} kvf_ucp_params;

#define KVF_UCP_ATTR_FIELD_MEMORY_TYPES (UINT64_C(1) << 2)

typedef struct kvf_ucp_context_attr {
  uint64_t field_mask;
  size_t request_size;
  int thread_mode;
  uint64_t memory_types; /* a bit for each KVF_UCS_MEMORY_TYPE_ */
  /* More follows, none of it in our mask. */
} kvf_ucp_context_attr;

#define KVF_UCP_WORKER_PARAM_FIELD_THREAD_MODE (UINT64_C(1) << 0)
#define KVF_UCP_WORKER_PARAM_FIELD_FLAGS (UINT64_C(1) << 5)
#define KVF_UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK UINT64_C(1)

typedef struct kvf_ucp_worker_params {
  uint64_t field_mask;
  int thread_mode;
  unsigned long cpu_mask[1024 / (8 * sizeof(unsigned long))];
  unsigned events;
  void *user_data;
  int event_fd;
  uint64_t flags;
  /* More follows, none of it in our mask. */
} kvf_ucp_worker_params;

#define KVF_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS (UINT64_C(1) << 0)
#define KVF_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE (UINT64_C(1) << 1)
#define KVF_UCP_EP_PARAM_FIELD_ERR_HANDLER (UINT64_C(1) << 2)

typedef struct kvf_ucp_ep_params {
  uint64_t field_mask;
  const void *address;
  int err_mode;
  struct {
    void (*cb)(void *arg, kvf_ucp_ep ep, kvf_ucs_status status);
    void *arg;
  } err_handler;
  /* More follows, none of it in our mask. */
} kvf_ucp_ep_params;

#define KVF_UCP_MEM_MAP_PARAM_FIELD_ADDRESS (UINT64_C(1) << 0)
#define KVF_UCP_MEM_MAP_PARAM_FIELD_LENGTH (UINT64_C(1) << 1)
#define KVF_UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE (UINT64_C(1) << 4)

typedef struct kvf_ucp_mem_map_params {
  uint64_t field_mask;
  void *address;
  size_t length;
  unsigned flags;
  unsigned prot;
  int memory_type;
  /* More follows, none of it in our mask. */
} kvf_ucp_mem_map_params;

#define KVF_UCP_OP_ATTR_FIELD_CALLBACK (UINT32_C(1) << 1)
#define KVF_UCP_OP_ATTR_FIELD_USER_DATA (UINT32_C(1) << 2)
#define KVF_UCP_OP_ATTR_FIELD_DATATYPE (UINT32_C(1) << 3)
#define KVF_UCP_OP_ATTR_FIELD_FLAGS (UINT32_C(1) << 4)
#define KVF_UCP_OP_ATTR_FIELD_MEMORY_TYPE (UINT32_C(1) << 6)
#define KVF_UCP_OP_ATTR_FIELD_MEMH (UINT32_C(1) << 8)
#define KVF_UCP_EP_CLOSE_FLAG_FORCE UINT32_C(1)
#define KVF_UCP_AM_SEND_FLAG_REPLY UINT32_C(1)
#define KVF_UCP_AM_SEND_FLAG_EAGER UINT32_C(2)

typedef struct kvf_ucp_request_param {
  uint32_t op_attr_mask;
  uint32_t flags;
  void *request;
  void (*send)(void *request, kvf_ucs_status status, void *user_data); /* of a union */
  uint64_t datatype;
  void *user_data;
  void *reply_buffer;
  int memory_type;
  void *recv_info; /* of a union */
  kvf_ucp_mem memh;
} kvf_ucp_request_param;

#define KVF_UCP_AM_RECV_ATTR_FIELD_REPLY_EP (UINT64_C(1) << 0)
#define KVF_UCP_AM_RECV_ATTR_FLAG_RNDV (UINT64_C(1) << 17)

typedef struct kvf_ucp_am_recv_param {
  uint64_t recv_attr;
  kvf_ucp_ep reply_ep;
} kvf_ucp_am_recv_param;

#define KVF_UCP_AM_HANDLER_PARAM_FIELD_ID (UINT64_C(1) << 0)
#define KVF_UCP_AM_HANDLER_PARAM_FIELD_FLAGS (UINT64_C(1) << 1)
#define KVF_UCP_AM_HANDLER_PARAM_FIELD_CB (UINT64_C(1) << 2)
#define KVF_UCP_AM_HANDLER_PARAM_FIELD_ARG (UINT64_C(1) << 3)
#define KVF_UCP_AM_FLAG_WHOLE_MSG UINT32_C(1)

/* Header and data are good until it returns. */
typedef kvf_ucs_status (*kvf_ucp_am_handler)(void *arg, const void *header, size_t header_bytes, void *data,
                                             size_t bytes, const kvf_ucp_am_recv_param *param);

typedef struct kvf_ucp_am_handler_param {
  uint64_t field_mask;
  unsigned id;
  uint32_t flags;
  kvf_ucp_am_handler cb;
  void *arg;
} kvf_ucp_am_handler_param;

/* A datatype whose bytes are written by pack(), into buffers of UCX's, when it sends them. `state` is what start_pack()
 * returned, and `offset` counts from the first of packed_size() bytes. */
typedef struct kvf_ucp_generic_dt_ops {
  void *(*start_pack)(void *context, const void *buffer, size_t count);
  void *(*start_unpack)(void *context, void *buffer, size_t count);
  size_t (*packed_size)(void *state);
  size_t (*pack)(void *state, size_t offset, void *to, size_t bytes_max);
  kvf_ucs_status (*unpack)(void *state, size_t offset, const void *from, size_t bytes);
  void (*finish)(void *state);
} kvf_ucp_generic_dt_ops;

static inline int kvf_ucs_is_error(const void *pointer)
{
  return (uintptr_t)pointer >= (uintptr_t)KVF_UCS_ERR_LAST;
}

static inline kvf_ucs_status kvf_ucs_error(const void *pointer)
{
  return (kvf_ucs_status)(intptr_t)pointer;
}

/* The functions, found in the library. */
typedef struct kvf_ucx_api {
  void (*get_version)(unsigned *major, unsigned *minor, unsigned *release);
  const char *(*status_string)(kvf_ucs_status status);
  kvf_ucs_status (*config_read)(const char *env_prefix, const char *file, kvf_ucp_config *out);
  kvf_ucs_status (*config_modify)(kvf_ucp_config config, const char *name, const char *value);
  void (*config_release)(kvf_ucp_config config);
  kvf_ucs_status (*init_version)(unsigned major, unsigned minor, const kvf_ucp_params *params, const void *config,
                                 kvf_ucp_context *out);
  void (*cleanup)(kvf_ucp_context context);
  kvf_ucs_status (*context_query)(kvf_ucp_context context, kvf_ucp_context_attr *attr);
  kvf_ucs_status (*worker_create)(kvf_ucp_context context, const kvf_ucp_worker_params *params, kvf_ucp_worker *out);
  void (*worker_destroy)(kvf_ucp_worker worker);
  unsigned (*worker_progress)(kvf_ucp_worker worker);
  kvf_ucs_status (*worker_get_efd)(kvf_ucp_worker worker, int *fd);
  kvf_ucs_status (*worker_arm)(kvf_ucp_worker worker);
  kvf_ucs_status (*worker_get_address)(kvf_ucp_worker worker, void **address, size_t *bytes);
  void (*worker_release_address)(kvf_ucp_worker worker, void *address);
  kvf_ucs_status (*ep_create)(kvf_ucp_worker worker, const kvf_ucp_ep_params *params, kvf_ucp_ep *out);
  kvf_ucs_pointer (*ep_close_nbx)(kvf_ucp_ep ep, const kvf_ucp_request_param *param);
  kvf_ucs_status (*mem_map)(kvf_ucp_context context, const kvf_ucp_mem_map_params *params, kvf_ucp_mem *out);
  kvf_ucs_status (*mem_unmap)(kvf_ucp_context context, kvf_ucp_mem mem);
  kvf_ucs_status (*rkey_pack)(kvf_ucp_context context, kvf_ucp_mem mem, void **rkey, size_t *bytes);
  void (*rkey_buffer_release)(void *rkey);
  kvf_ucs_status (*ep_rkey_unpack)(kvf_ucp_ep ep, const void *rkey, kvf_ucp_rkey *out);
  void (*rkey_destroy)(kvf_ucp_rkey rkey);
  kvf_ucs_pointer (*get_nbx)(kvf_ucp_ep ep, void *buffer, size_t count, uint64_t remote_address, kvf_ucp_rkey rkey,
                             const kvf_ucp_request_param *param);
  void (*request_free)(void *request);
  kvf_ucs_status (*worker_set_am_recv_handler)(kvf_ucp_worker worker, const kvf_ucp_am_handler_param *param);
  kvf_ucs_pointer (*am_send_nbx)(kvf_ucp_ep ep, unsigned id, const void *header, size_t header_bytes,
                                 const void *buffer, size_t count, const kvf_ucp_request_param *param);
  kvf_ucs_status (*dt_create_generic)(const kvf_ucp_generic_dt_ops *ops, void *context, uint64_t *out);
  void (*dt_destroy)(uint64_t datatype);
  void (*ep_print_info)(kvf_ucp_ep ep, FILE *stream);
  unsigned major;
  unsigned minor;
  unsigned release;
} kvf_ucx_api;

#endif
