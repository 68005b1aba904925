#include "server_frames.h"

#include "wire/lease_message.h"

size_t server_challenge(fuzz_tape *tape, wire *from, const kvf_key *key, uint8_t body[SERVER_BODY_BYTES])
{
  static const kvf_key other = {"another key, as long", 20};
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  kvf_hello hello;
  kvf_challenge challenge = {.version = (choice & 0xf0) == 0xf0 ? KVF_PROTOCOL_VERSION + 1 : KVF_PROTOCOL_VERSION,
                             .nonce = {1, 2}};
  if (kvf_hello_decode(from->hello, from->hello_bytes, &hello) != KVF_OK) {
    return 0;
  }
  challenge.server = hello.expected;
  challenge.server.bytes[0] ^= (choice & 0xf0) == 0xe0 ? 1 : 0;
  from->is_other = from->is_other || (from->challenge_bytes == 0 && (choice & 0xf0) == 0xe0);
  fuzz_check(kvf_handshake_server_proof(from->has_key ? key : &other, from->hello, from->hello_bytes, &challenge,
                                        challenge.proof) == KVF_OK);
  fuzz_check(kvf_challenge_encode(&challenge, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

size_t server_welcome(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES])
{
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  uint8_t description[2] = {1, 2};
  kvf_region_layout regions[3];
  for (uint32_t i = 0; i < 3; i++) {
    regions[i] = (kvf_region_layout){.stride_bytes = WIRES_BLOCK_BYTES,
                                     .block_bytes = WIRES_BLOCK_BYTES,
                                     .blocks = WIRES_BLOCKS,
                                     .heads = 1,
                                     .heads_total = 1};
  }
  kvf_welcome welcome = {.session_id = 5,
                         .ranks = 1 + (choice & 1),
                         .rank = (choice & 1),
                         .block_tokens = (choice & 0x10) != 0 ? 32 : 16,
                         .regions_count = (choice >> 1) & 3,
                         .regions = regions,
                         .transports_count = 1 + ((choice >> 3) & 1),
                         .transports = {{.name = "tcp", .description = description, .description_bytes = 1},
                                        {.name = "local", .description = description, .description_bytes = 2}}};
  welcome.regions_count = welcome.regions_count == 0 ? 1 : welcome.regions_count - 1;
  welcome.transports_count = (choice & 0x60) == 0x60 ? 0 : welcome.transports_count;
  fuzz_check(kvf_welcome_encode(&welcome, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

size_t server_refused(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES])
{
  static const int32_t statuses[] = {KVF_INCOMPATIBLE, KVF_HANDSHAKE_REFUSED, KVF_PROTOCOL, -12345};
  size_t bytes = 0;
  kvf_refused refused = {.status = statuses[fuzz_choose(tape, 4)], .message = "%s%n"};
  fuzz_check(kvf_refused_encode(&refused, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

size_t server_states(fuzz_tape *tape, const uint64_t *request_ids, uint32_t count, uint64_t first_lease_id,
                     uint8_t body[SERVER_BODY_BYTES])
{
  static kvf_lease_states states;
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  states.seq = fuzz_u8(tape);
  states.count = 1 + (choice & 3);
  for (uint32_t i = 0; i < states.count; i++) {
    uint8_t which = fuzz_u8(tape);
    uint32_t place = count == 0 ? which : which % count;
    states.items[i] = (kvf_lease_states_item){.lease_id = first_lease_id + place,
                                              .slot = (uint32_t)(first_lease_id - 100) + place,
                                              .request_id = count == 0 ? which : request_ids[place],
                                              .state = 1 + ((which >> 4) & 3)};
  }
  fuzz_check(kvf_lease_states_encode(&states, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}
