/* Communicators of the emulated HCCL: ranks are processes (or threads) of one machine that share memory.
 *
 * HCCL_CONNECT_TIMEOUT, HCCL_EXEC_TIMEOUT: seconds for a communicator to form and for a collective, as with CANN.
 *
 * The memory is a file without a name that belongs to the rank that made the root info; the others reach it through
 * that process. So nothing is left behind, however a rank ends. Each rank holds a lock on its byte of the file, which
 * the kernel lifts when the rank ends: the others learn of a death at once, where real ones would wait for a timeout.
 */
#define _GNU_SOURCE
#include "hccl.h"

#include "cann.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Microseconds between two looks: at first, and after so many looks. */
#define SHORT_PAUSE 100
#define LONG_PAUSE 2000
#define SHORT_PAUSES 100
#define DEATH_LOOK 20 /* looks between two looks for dead ranks */

typedef struct {
  char text[4108]; /* the size of HcclRootInfo */
} root_info;

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + at.tv_nsec * 1e-9;
}

/* 0 asks for no limit; here everything has one. */
static double seconds_of(const char *variable, double fallback) {
  const char *text = getenv(variable);
  double seconds = text ? atof(text) : 0;
  return seconds > 0 ? seconds : fallback;
}
static double connection_seconds(void) { return seconds_of("HCCL_CONNECT_TIMEOUT", 120); }
double collective_seconds(void) { return seconds_of("HCCL_EXEC_TIMEOUT", 1836); }

static int lock_of(communicator *it, uint32_t rank, int command, short kind) {
  struct flock lock = {.l_type = kind, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
  if (fcntl(it->file, command, &lock)) return -1;
  return lock.l_type;
}

static int has_lost_a_rank(communicator *it) {
  for (uint32_t rank = 0; rank < it->ranks; rank++)
    if (rank != it->rank && it->all->has_joined[rank] && lock_of(it, rank, F_OFD_GETLK, F_WRLCK) == F_UNLCK) return 1;
  return 0;
}

int broken(communicator *it, int code, const char *why) {
  __atomic_store_n(&it->all->is_broken, 1, __ATOMIC_SEQ_CST);
  return lose(code, "rank %u of %u: %s", it->rank, it->ranks, why);
}

static int is_there(const uint32_t *word, uint32_t value, int is_equal) {
  return (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) == is_equal;
}

/* Until the word has (or no longer has) the value. A communicator that broke once stays broken for all its ranks. */
int await(communicator *it, const uint32_t *word, uint32_t value, int is_equal, double seconds) {
  double end = now() + seconds;
  for (long pauses = 0; !is_there(word, value, is_equal); pauses++) {
    if (lost()) return broken(it, H_INTERNAL, "its devices are void");
    if (__atomic_load_n(&it->all->is_broken, __ATOMIC_SEQ_CST)) return broken(it, H_REMOTE, "another rank has failed");
    if (pauses % DEATH_LOOK == DEATH_LOOK - 1) {
      int lost = has_lost_a_rank(it);
      if (is_there(word, value, is_equal)) break; /* it had done its part before it ended */
      if (lost) return broken(it, H_REMOTE, "another rank has ended");
      if (now() > end) return broken(it, H_TIMEOUT, "timeout");
    }
    usleep(pauses < SHORT_PAUSES ? SHORT_PAUSE : LONG_PAUSE);
  }
  return H_OK;
}

int barrier(communicator *it, double seconds) {
  shared *all = it->all;
  if (lost()) return broken(it, H_INTERNAL, "its devices are void");
  uint32_t generation = __atomic_load_n(&all->generation, __ATOMIC_SEQ_CST);
  if (__atomic_add_fetch(&all->arrived, 1, __ATOMIC_SEQ_CST) < it->ranks)
    return await(it, &all->generation, generation, 0, seconds);
  __atomic_store_n(&all->arrived, 0, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&all->generation, 1, __ATOMIC_SEQ_CST);
  return H_OK;
}

int HcclGetRootInfo(root_info *made) {
  int file = memfd_create("rallypoint-hccl", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, sizeof(shared))) return H_MEMORY;
  memset(made, 0, sizeof *made);
  snprintf(made->text, sizeof made->text, "/proc/%d/fd/%d", (int)getpid(), file);
  return H_OK;
}

/* The maker's own file is no longer needed once all have opened it. */
static void close_makers_file(const char *path) {
  int process, file;
  if (sscanf(path, "/proc/%d/fd/%d", &process, &file) == 2 && process == getpid()) close(file);
}

static void forget(communicator *it) {
  if (it->all) munmap(it->all, sizeof *it->all);
  if (it->file >= 0) close(it->file);
  free(it);
}

static int join(communicator *it, const char *path) {
  it->file = open(path, O_RDWR | O_CLOEXEC);
  if (it->file < 0)
    return lose(H_REMOTE, "rank %u of %u: the rank that made %s cannot be reached: %s", it->rank, it->ranks, path,
                strerror(errno));
  void *memory = mmap(NULL, sizeof *it->all, PROT_READ | PROT_WRITE, MAP_SHARED, it->file, 0);
  if (memory == MAP_FAILED) return H_MEMORY;
  it->all = memory;
  if (lock_of(it, it->rank, F_OFD_SETLK, F_WRLCK) < 0) return broken(it, H_PARAMETER, "this rank is taken");
  __atomic_store_n(&it->all->has_joined[it->rank], 1, __ATOMIC_SEQ_CST);
  return barrier(it, connection_seconds());
}

int HcclCommInitRootInfo(uint32_t ranks, const root_info *root, uint32_t rank, void **made) {
  if (!ranks || ranks > MOST_RANKS || rank >= ranks) return H_PARAMETER;
  communicator *it = calloc(1, sizeof *it);
  if (!it) return H_MEMORY;
  *it = (communicator){.file = -1, .rank = rank, .ranks = ranks};
  snprintf(it->name, sizeof it->name, "emulated%.50s", root->text);
  int error = join(it, root->text);
  close_makers_file(root->text);
  if (error) forget(it);
  else *made = it;
  return error;
}
int HcclCommInitRootInfoConfig(uint32_t ranks, const root_info *root, uint32_t rank, const void *configuration,
                               void **made) {
  return HcclCommInitRootInfo(ranks, root, rank, made);
}

int HcclCommDestroy(communicator *old) {
  if (old) forget(old);
  return H_OK;
}

int HcclGetCommAsyncError(communicator *it, int *error) {
  *error = it->all->is_broken ? H_REMOTE : H_OK;
  return H_OK;
}
int HcclGetCommName(communicator *it, char *name) {
  strcpy(name, it->name);
  return H_OK;
}
int HcclGetRankSize(communicator *it, uint32_t *ranks) {
  *ranks = it->ranks;
  return H_OK;
}
int HcclGetRankId(communicator *it, uint32_t *rank) {
  *rank = it->rank;
  return H_OK;
}
int HcclSetConfig(void) { return H_OK; }

const char *HcclGetErrorString(int code) {
  switch (code) {
    case H_OK: return "emulated HCCL: no error";
    case H_TIMEOUT: return "emulated HCCL: timeout";
    case H_REMOTE: return "emulated HCCL: another rank has ended or failed";
    default: return "emulated HCCL: error";
  }
}
