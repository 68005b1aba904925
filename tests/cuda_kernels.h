#ifndef KVF_TESTS_CUDA_KERNELS_H
#define KVF_TESTS_CUDA_KERNELS_H

/* The kernels of cuda_kernels.cu, as text for cuModuleLoadData(). */
extern const char cuda_kernels_ptx[];

#endif
