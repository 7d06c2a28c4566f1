/* What happens when something is asked for that is not emulated, or when a collective fails: the devices are lost.
 *
 * torch_npu may learn of an error late, or not at all: its operators run in a queue. So an error code is not enough. The
 * loss is said on standard error, and from then on every copy, launch, synchronisation and collective of this process
 * fails: no value can reach Python that an operator should have computed and did not.
 */
#include "cann.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_lost;
static char reason[400] = "emulated CANN: no error";

int lose(int code, const char *format, ...) {
  char why[300];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(why, sizeof why, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&lock);
  if (!is_lost) {
    snprintf(reason, sizeof reason, "emulated CANN: %s; the devices of process %d are void from here on", why,
             (int)getpid());
    fprintf(stderr, "%s\n", reason);
    is_lost = 1;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

int lost(void) { return is_lost ? E_LOST : OK; }

/* For the generated stubs: functions that return an error code, and functions that return anything else, where no
   value would be an honest one. */
int rallypoint_cann_refuse(const char *name) { return refuse("%s", name); }

void rallypoint_cann_abort(const char *name) {
  refuse("%s", name);
  abort();
}

const char *aclGetRecentErrMsg(void) { return reason; }
