/* What is measured, the most important first: a run that has no time left leaves the last ones out. */
#include "gpu_bench.h"

#define KIB 1024u
#define MIB (1024u * KIB)

#define LOCAL(is_quick, name, layers, blocks, bytes) \
  {"local", "local", false, false, false, is_quick, {name, layers, blocks, {bytes, 0}}, bench_run_rounds}
/* Pages of `tokens` tokens, of 576 bytes in the one part and 132 in the other. How many layers have both is not said
 * where these sizes come from: so many as DeepSeek-V3 has. */
#define DEEPSEEK(is_quick, name, tokens, blocks)                                                                    \
  {"local",         "local", false, false, false, is_quick, {name, 61, blocks, {(tokens) * 576u, (tokens) * 132u}}, \
   bench_run_rounds}
#define LLAMA(what) {"Llama-3-70B:80x64x64KiB" what, 80, 64, {64 * KIB, 0}}

#define MATRIX(is_quick, name, blocks, bytes) \
  {"gather", "local", false, false, false, is_quick, {name, 1, blocks, {bytes, 0}}, bench_run_matrix}
#define COMPUTING(is_quick, ...) \
  {"P-computing", "local", false, false, false, is_quick, __VA_ARGS__, bench_run_rounds_beside_producer}
#define BESIDE(is_quick, run, ...) {"beside", "local", false, false, false, is_quick, __VA_ARGS__, run}

const bench_case bench_cases[] = {
    {"gather", "local", false, false, false, true, LLAMA(""), bench_run_matrix},
    MATRIX(true, "5120x64KiB", 5120, 64 * KIB),
    MATRIX(true, "16384x16KiB", 16384, 16 * KIB),
    MATRIX(false, "1280x256KiB", 1280, 256 * KIB),
    MATRIX(false, "320x1MiB", 320, MIB),
    MATRIX(false, "32768x4KiB", 32768, 4 * KIB),
    MATRIX(false, "2560x128KiB", 2560, 128 * KIB),
    MATRIX(false, "10240x32KiB", 10240, 32 * KIB),
    MATRIX(false, "640x512KiB", 640, 512 * KIB),
    {"local", "local", false, false, false, true, LLAMA(""), bench_run_rounds},
    LOCAL(true, "5120x16KiB", 1, 5120, 16 * KIB),
    LOCAL(false, "1280x256KiB", 1, 1280, 256 * KIB),
    {"gpu-to-host", "local", false, true, false, true, LLAMA(""), bench_run_rounds},
    {"host-to-gpu", "local", true, false, false, true, LLAMA(""), bench_run_rounds},
    BESIDE(true, bench_run_beside_launch, LLAMA(",launches")),
    COMPUTING(true, LLAMA("")),
    {"first", "local", false, false, false, true, {"64x64KiB", 1, 64, {64 * KIB, 0}}, bench_run_first},
    {"calls", "local", false, false, false, true, {"64x64KiB", 1, 64, {64 * KIB, 0}}, bench_run_calls},
    LOCAL(true, "1x4KiB", 1, 1, 4 * KIB),
    DEEPSEEK(true, "DeepSeek-V4:8k,pages-of-16", 16, 512),
    {"tcp", "tcp", false, false, false, true, LLAMA(""), bench_run_rounds},
    {"local", "local", false, false, true, true, LLAMA("+checksums"), bench_run_rounds},
    BESIDE(true, bench_run_beside_multiply, LLAMA(",multiply")),
    LOCAL(false, "10240x32KiB", 1, 10240, 32 * KIB),
    LOCAL(false, "5120x64KiB", 1, 5120, 64 * KIB),
    LOCAL(false, "2560x128KiB", 1, 2560, 128 * KIB),
    LOCAL(false, "640x512KiB", 1, 640, 512 * KIB),
    LOCAL(false, "320x1MiB", 1, 320, MIB),
    LOCAL(false, "64x16KiB", 1, 64, 16 * KIB),
    LOCAL(false, "64x1MiB", 1, 64, MIB),
    COMPUTING(false, {"5120x16KiB", 1, 5120, {16 * KIB, 0}}),
    COMPUTING(false, {"1280x256KiB", 1, 1280, {256 * KIB, 0}}),
    BESIDE(false, bench_run_beside_launch, {"5120x16KiB,launches", 1, 5120, {16 * KIB, 0}}),
    {"gpu-to-host", "local", false, true, false, false, {"64x1MiB", 1, 64, {MIB, 0}}, bench_run_rounds},
    {"host-to-gpu", "local", true, false, false, false, {"64x1MiB", 1, 64, {MIB, 0}}, bench_run_rounds},
    DEEPSEEK(false, "DeepSeek-V4:64k,pages-of-64", 64, 1024),
    DEEPSEEK(false, "DeepSeek-V4:64k,pages-of-16", 16, 4096),
    {"local", "local", false, false, true, false, {"5120x16KiB+checksums", 1, 5120, {16 * KIB, 0}}, bench_run_rounds},
    {"tcp", "tcp", false, false, false, false, {"64x1MiB", 1, 64, {MIB, 0}}, bench_run_rounds},
    BESIDE(false, bench_run_beside_multiply, {"5120x16KiB,multiply", 1, 5120, {16 * KIB, 0}}),
    LOCAL(false, "1x16KiB", 1, 1, 16 * KIB),
    LOCAL(false, "1024x16KiB", 1, 1024, 16 * KIB),
    LOCAL(false, "256x256KiB", 1, 256, 256 * KIB),
    LOCAL(false, "SmolLM2:30x4x96KiB", 30, 4, 96 * KIB),
    DEEPSEEK(false, "DeepSeek-V4:8k,pages-of-64", 64, 128),
    DEEPSEEK(false, "DeepSeek-V4:512k,pages-of-64", 64, 8192),
    DEEPSEEK(false, "DeepSeek-V4:512k,pages-of-16", 16, 32768),
};
const size_t bench_cases_count = sizeof(bench_cases) / sizeof(bench_cases[0]);
