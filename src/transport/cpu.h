/* What this machine's processor can do. */
#ifndef KVF_TRANSPORT_CPU_H
#define KVF_TRANSPORT_CPU_H

#include <stdbool.h>

/* AES-GCM in hardware: without, ChaCha20-Poly1305 is several times as fast (`openssl speed -evp aes-128-gcm`, and
 * `-evp chacha20-poly1305`). */
bool kvf_cpu_has_aes(void);

#endif
