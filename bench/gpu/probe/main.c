/* Runs each question in a process with a limit, and prints a JSON object a line. */
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda_kernels.h"
#include "probe.h"

#define ANSWER_BYTES 8192
#define LIMIT_S 6.0
#define POLL_NS 1000000
#define WORDS (64 * KIB)
#define FAILED "\"failed\": "

static char *answer; /* shared with the question's processes */
static const char *library;
driver cuda;

/* ---- answers ---- */

__attribute__((format(printf, 1, 2))) static void add(const char *format, ...)
{
  const size_t used = strlen(answer);
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(answer + used, ANSWER_BYTES - used, format, arguments);
  va_end(arguments);
}

void say_number(const char *name, double value)
{
  add(value == (double)(int64_t)value ? ", \"%s\": %.0f" : ", \"%s\": %.4g", name, value);
}

void say_text(const char *name, const char *text)
{
  add(", \"%s\": \"", name);
  for (; *text != '\0'; text++) {
    if (*text >= ' ' && *text != '"' && *text != '\\') {
      add("%c", *text);
    }
  }
  add("\"");
}

void say_result(const char *name, kvf_cu_result result)
{
  const char *text = NULL;
  if (cuda.api.get_error_name(result, &text) != KVF_CUDA_SUCCESS || text == NULL) {
    say_number(name, result);
  } else {
    say_text(name, text);
  }
}

void say_errno(const char *name, long result)
{
  say_text(name, result >= 0 ? "works" : strerror(errno));
}

double now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void give_up(const char *why)
{
  if (strstr(answer, FAILED) == NULL) { /* the other process then only says that this one is gone */
    say_text("failed", why);
  }
  _exit(1);
}

void expect(kvf_cu_result result, const char *call)
{
  if (result != KVF_CUDA_SUCCESS) {
    say_result("error", result);
    give_up(call);
  }
}

/* ---- the driver ---- */

static bool find(void *from, const char *symbol, void *field)
{
  void *found = dlsym(from, symbol);
  memcpy(field, &found, sizeof(found));
  return found != NULL;
}

void load_driver(void)
{
  void *loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (loaded == NULL) {
    give_up(dlerror());
  }
#define FIND(symbol, field)                      \
  if (!find(loaded, #symbol, &cuda.api.field)) { \
    give_up("the driver has no " #symbol);       \
  }
  KVF_CUDA_CALLS(FIND)
#undef FIND
  if (!find(loaded, "cuMemAlloc_v2", &cuda.mem_alloc) || !find(loaded, "cuMemFree_v2", &cuda.mem_free) ||
      !find(loaded, "cuMemGetInfo_v2", &cuda.mem_get_info) || !find(loaded, "cuMemCreate", &cuda.mem_create) ||
      !find(loaded, "cuStreamSynchronize", &cuda.stream_synchronize)) {
    give_up("the driver is not whole");
  }
  (void)find(loaded, "cuCtxGetStreamPriorityRange", &cuda.priority_range);
  cuda.is_fake = dlsym(loaded, "fake_cuda_seed") != NULL;
}

void init_driver(void)
{
  load_driver();
  must(cuda.api.init(0));
  must(cuda.api.device_get(&cuda.device, 0));
  unsigned status = 0;
  void *batch = NULL;
  if (cuda.api.get_proc_address("cuMemcpyBatchAsync", &batch, KVF_CUDA_VERSION_BATCH, KVF_CU_GET_PROC_ADDRESS_DEFAULT,
                                &status) == KVF_CUDA_SUCCESS) {
    memcpy(&cuda.api.memcpy_batch_async, &batch, sizeof(batch));
  }
}

void enter_driver(void)
{
  kvf_cu_context context;
  init_driver();
  must(cuda.api.device_primary_ctx_retain(&context, cuda.device));
  must(cuda.api.ctx_push_current(context));
}

kvf_cu_stream make_stream(void)
{
  kvf_cu_stream stream;
  must(cuda.api.stream_create_with_priority(&stream, KVF_CU_STREAM_NON_BLOCKING, 0));
  return stream;
}

kvf_cu_memory allocate(size_t bytes)
{
  kvf_cu_memory address = 0;
  must(cuda.mem_alloc(&address, bytes));
  return address;
}

/* The first words by the host, then what is there is doubled. */
void fill(kvf_cu_memory to, size_t bytes, uint64_t word)
{
  static uint64_t words[WORDS / sizeof(uint64_t)];
  kvf_cu_stream stream = make_stream();
  size_t done = bytes < WORDS ? bytes : WORDS;
  for (size_t i = 0; i < WORDS / sizeof(words[0]); i++) {
    words[i] = word;
  }
  must(cuda.api.memcpy_async(to, (uintptr_t)words, done, stream));
  while (done < bytes) {
    const size_t more = done < bytes - done ? done : bytes - done;
    must(cuda.api.memcpy_async(to + done, to, more, stream));
    done += more;
  }
  must(cuda.stream_synchronize(stream));
  must(cuda.api.stream_destroy(stream));
}

bool begin_kernel(kvf_cu_stream stream, kvf_cu_memory scratch, uint64_t ns)
{
  static kvf_cu_function kernel;
  kvf_cu_module module;
  uint64_t values[] = {scratch, 1, 1, ns};
  void *arguments[] = {&values[0], &values[1], &values[2], &values[3]};
  if (kernel == NULL && (cuda.api.module_load_data(&module, cuda_kernels_ptx) != KVF_CUDA_SUCCESS ||
                         cuda.api.module_get_function(&kernel, module, "test_fill") != KVF_CUDA_SUCCESS)) {
    kernel = NULL;
    return false;
  }
  must(cuda.api.launch_kernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, arguments, NULL));
  return true;
}

double drain_ms(kvf_cu_stream stream)
{
  const double begin = now_ms();
  must(cuda.stream_synchronize(stream));
  return now_ms() - begin;
}

/* ---- the processes ---- */

static void run(const question *asked)
{
  (void)setpgid(0, 0);
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (asked->ask != NULL) {
    asked->ask();
  } else {
    ask_pair(asked);
  }
  _exit(0);
}

/* The question's process, and all that it has started. */
static void end(pid_t child)
{
  (void)kill(-child, SIGKILL);
  while (waitpid(-child, NULL, 0) > 0 || errno == EINTR) {
  }
}

static void wait_for(pid_t child, double limit_s)
{
  const struct timespec pause = {0, POLL_NS};
  const double begin = now_ms();
  siginfo_t info = {0};
  char text[64];
  while (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) {
    if (now_ms() - begin > limit_s * 1e3) {
      (void)snprintf(text, sizeof(text), "not over after %.0f s", limit_s);
      say_text("failed", text);
      return;
    }
    (void)nanosleep(&pause, NULL);
  }
  if (info.si_code != CLD_EXITED) {
    (void)snprintf(text, sizeof(text), "ended by signal %d", info.si_status);
    say_text("failed", text);
  }
}

static bool answer_to(const question *asked)
{
  const double begin = now_ms();
  answer[0] = '\0';
  const pid_t child = fork();
  if (child == 0) {
    run(asked);
  }
  if (child < 0) {
    say_text("failed", "cannot fork");
  } else {
    (void)setpgid(child, child);
    wait_for(child, asked->limit_s > 0 ? asked->limit_s : LIMIT_S);
    end(child);
  }
  (void)printf("{\"question\": \"%s\"%s, \"took_ms\": %.0f}\n", asked->name, answer, now_ms() - begin);
  (void)fflush(stdout);
  return strstr(answer, FAILED) == NULL;
}

static bool answer_all(const question *questions, size_t count, const char *only)
{
  bool good = true;
  for (size_t i = 0; i < count; i++) {
    if (strstr(questions[i].name, only) != NULL) {
      good = answer_to(&questions[i]) && good;
    }
  }
  return good;
}

int main(int argc, char **argv)
{
  library = argc > 1 ? argv[1] : "libcuda.so.1";
  const char *only = argc > 2 ? argv[2] : "";
  answer = mmap(NULL, ANSWER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (answer == MAP_FAILED || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    (void)fprintf(stderr, "probe: cannot watch its processes\n");
    return 1;
  }
  bool good = answer_all(one_process, one_process_count, only);
  good = answer_all(two_processes, two_processes_count, only) && good;
  return good ? 0 : 1;
}
