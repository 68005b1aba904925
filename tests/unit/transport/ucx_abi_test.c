/* What transport/ucx/ucx_api.h declares is what UCX's own headers say. Built where they are. */
#include "test.h"
#include "transport/ucx/ucx_api.h"

#include <ucp/api/ucp.h>

#define SAME_FIELD(ours, theirs, field)                                                                               \
  _Static_assert(                                                                                                     \
      offsetof(ours, field) == offsetof(theirs, field) && sizeof(((ours *)0)->field) == sizeof(((theirs *)0)->field), \
      #field)
/* Of pointers. */
#define SAME_PLACE(ours, theirs, field) _Static_assert(offsetof(ours, field) == offsetof(theirs, field), #field)
#define SAME_VALUE(name) _Static_assert((uint64_t)KVF_##name == (uint64_t)(name), #name)

SAME_FIELD(kvf_ucp_params, ucp_params_t, field_mask);
SAME_FIELD(kvf_ucp_params, ucp_params_t, features);
SAME_VALUE(UCP_PARAM_FIELD_FEATURES);
SAME_VALUE(UCP_FEATURE_RMA);
SAME_VALUE(UCP_FEATURE_WAKEUP);

SAME_FIELD(kvf_ucp_context_attr, ucp_context_attr_t, field_mask);
SAME_FIELD(kvf_ucp_context_attr, ucp_context_attr_t, memory_types);
SAME_VALUE(UCP_ATTR_FIELD_MEMORY_TYPES);

SAME_FIELD(kvf_ucp_worker_params, ucp_worker_params_t, field_mask);
SAME_FIELD(kvf_ucp_worker_params, ucp_worker_params_t, thread_mode);
SAME_FIELD(kvf_ucp_worker_params, ucp_worker_params_t, flags);
SAME_VALUE(UCP_WORKER_PARAM_FIELD_THREAD_MODE);
SAME_VALUE(UCP_WORKER_PARAM_FIELD_FLAGS);
SAME_VALUE(UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK);
SAME_VALUE(UCS_THREAD_MODE_SINGLE);
SAME_VALUE(UCS_THREAD_MODE_SERIALIZED);

SAME_FIELD(kvf_ucp_ep_params, ucp_ep_params_t, field_mask);
SAME_PLACE(kvf_ucp_ep_params, ucp_ep_params_t, address);
SAME_FIELD(kvf_ucp_ep_params, ucp_ep_params_t, err_mode);
SAME_FIELD(kvf_ucp_ep_params, ucp_ep_params_t, err_handler.cb);
SAME_FIELD(kvf_ucp_ep_params, ucp_ep_params_t, err_handler.arg);
SAME_VALUE(UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
SAME_VALUE(UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
SAME_VALUE(UCP_EP_PARAM_FIELD_ERR_HANDLER);
SAME_VALUE(UCP_ERR_HANDLING_MODE_PEER);

SAME_FIELD(kvf_ucp_mem_map_params, ucp_mem_map_params_t, field_mask);
SAME_FIELD(kvf_ucp_mem_map_params, ucp_mem_map_params_t, address);
SAME_FIELD(kvf_ucp_mem_map_params, ucp_mem_map_params_t, length);
SAME_FIELD(kvf_ucp_mem_map_params, ucp_mem_map_params_t, memory_type);
SAME_VALUE(UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
SAME_VALUE(UCP_MEM_MAP_PARAM_FIELD_LENGTH);
SAME_VALUE(UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE);
SAME_VALUE(UCS_MEMORY_TYPE_HOST);
SAME_VALUE(UCS_MEMORY_TYPE_CUDA);

SAME_FIELD(kvf_ucp_request_param, ucp_request_param_t, op_attr_mask);
SAME_FIELD(kvf_ucp_request_param, ucp_request_param_t, flags);
SAME_FIELD(kvf_ucp_request_param, ucp_request_param_t, datatype);
SAME_FIELD(kvf_ucp_request_param, ucp_request_param_t, user_data);
SAME_FIELD(kvf_ucp_request_param, ucp_request_param_t, memory_type);
SAME_PLACE(kvf_ucp_request_param, ucp_request_param_t, memh);
_Static_assert(offsetof(kvf_ucp_request_param, send) == offsetof(ucp_request_param_t, cb), "cb");
SAME_VALUE(UCP_OP_ATTR_FIELD_CALLBACK);
SAME_VALUE(UCP_OP_ATTR_FIELD_USER_DATA);
SAME_VALUE(UCP_OP_ATTR_FIELD_DATATYPE);
SAME_VALUE(UCP_OP_ATTR_FIELD_FLAGS);
SAME_VALUE(UCP_OP_ATTR_FIELD_MEMORY_TYPE);
SAME_VALUE(UCP_OP_ATTR_FIELD_MEMH);
SAME_VALUE(UCP_EP_CLOSE_FLAG_FORCE);

SAME_VALUE(UCP_FEATURE_AM);
SAME_VALUE(UCP_AM_SEND_FLAG_REPLY);
SAME_VALUE(UCP_AM_SEND_FLAG_EAGER);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, start_pack);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, start_unpack);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, packed_size);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, pack);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, unpack);
SAME_PLACE(kvf_ucp_generic_dt_ops, ucp_generic_dt_ops_t, finish);
SAME_FIELD(kvf_ucp_am_recv_param, ucp_am_recv_param_t, recv_attr);
SAME_PLACE(kvf_ucp_am_recv_param, ucp_am_recv_param_t, reply_ep);
SAME_VALUE(UCP_AM_RECV_ATTR_FIELD_REPLY_EP);
SAME_VALUE(UCP_AM_RECV_ATTR_FLAG_RNDV);
SAME_FIELD(kvf_ucp_am_handler_param, ucp_am_handler_param_t, field_mask);
SAME_FIELD(kvf_ucp_am_handler_param, ucp_am_handler_param_t, id);
SAME_FIELD(kvf_ucp_am_handler_param, ucp_am_handler_param_t, flags);
SAME_PLACE(kvf_ucp_am_handler_param, ucp_am_handler_param_t, cb);
SAME_FIELD(kvf_ucp_am_handler_param, ucp_am_handler_param_t, arg);
SAME_VALUE(UCP_AM_HANDLER_PARAM_FIELD_ID);
SAME_VALUE(UCP_AM_HANDLER_PARAM_FIELD_FLAGS);
SAME_VALUE(UCP_AM_HANDLER_PARAM_FIELD_CB);
SAME_VALUE(UCP_AM_HANDLER_PARAM_FIELD_ARG);
SAME_VALUE(UCP_AM_FLAG_WHOLE_MSG);

_Static_assert(sizeof(kvf_ucs_status) == sizeof(ucs_status_t), "status");
SAME_VALUE(UCS_OK);
SAME_VALUE(UCS_INPROGRESS);
SAME_VALUE(UCS_ERR_NO_MEMORY);
SAME_VALUE(UCS_ERR_UNREACHABLE);
SAME_VALUE(UCS_ERR_NO_DEVICE);
SAME_VALUE(UCS_ERR_BUSY);
SAME_VALUE(UCS_ERR_CANCELED);
SAME_VALUE(UCS_ERR_LAST);

TEST(statuses_in_place_of_pointers_are_told_apart)
{
  int request = 0;
  for (int status = -1; status >= UCS_ERR_LAST; status--) {
    void *pointer = UCS_STATUS_PTR(status);
    assert_true(kvf_ucs_is_error(pointer));
    assert_int_equal(kvf_ucs_error(pointer), status);
  }
  assert_false(kvf_ucs_is_error(NULL));
  assert_false(kvf_ucs_is_error(&request));
}
