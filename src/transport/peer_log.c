#include "transport/peer_log.h"

#include <stdio.h>

void kvf_peer_log(const kvf_transport_host *host, const char *name, kvf_log_limit *limit, uint64_t now_ns,
                  kvf_log_level level, kvf_status why, const kvf_address *peer, const char *format, va_list arguments)
{
  uint32_t left_out = 0;
  if (!kvf_log_limit_allows(limit, (uint32_t)-why, now_ns, &left_out)) {
    return;
  }
  char address[KVF_ADDRESS_TEXT_BYTES];
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_address_format(peer, address);
  (void)vsnprintf(message, sizeof(message), format, arguments);
  char line[KVF_LOG_LINE_BYTES_MAX];
  int used = snprintf(line, sizeof(line), "%s: peer %s: %s", name, address, message);
  if (left_out > 0) {
    (void)snprintf(line + used, sizeof(line) - (size_t)used, " (and %u lines left out)", (unsigned)left_out);
  }
  host->log(host->context, level, line);
}
