/* For vllm_check.py: NVIDIA's driver and NVML with one GPU of compute capability 9.0, as far as they are asked while
 * vLLM is imported and configured. No work can be given to it. */

int nvmlInit(void);
int nvmlInit_v2(void);
int nvmlInitWithFlags(unsigned flags);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);
int nvmlDeviceGetName(void *device, char *name, unsigned length);
int cuGetProcAddress_v2(void);
int cuPointerGetAttribute(void);
int cuTensorMapEncodeTiled(void);

enum { SUCCESS = 0, NO_DEVICE = 100 };

int nvmlInit(void)
{
  return SUCCESS;
}

int nvmlInit_v2(void)
{
  return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
  (void)flags;
  return SUCCESS;
}

int nvmlShutdown(void)
{
  return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
  *count = 1;
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
  static char only[1];
  *device = only + index;
  return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
  (void)device;
  *major = 9;
  *minor = 0;
  return SUCCESS;
}

int nvmlDeviceGetName(void *device, char *name, unsigned length)
{
  (void)device;
  if (length > 0)
    name[0] = '\0';
  return SUCCESS;
}

int cuGetProcAddress_v2(void)
{
  return NO_DEVICE;
}

int cuPointerGetAttribute(void)
{
  return NO_DEVICE;
}

int cuTensorMapEncodeTiled(void)
{
  return NO_DEVICE;
}
