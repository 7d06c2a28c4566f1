/* Streams, events and host callbacks. Work is done when it is asked for, so each of them is complete at once. */
#include "cann.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

typedef struct {
  int id;
} stream;

typedef struct {
  struct timespec at;
} event;

static int make_stream(void **made) {
  static int streams;
  if (current_device() < 0) return E_CONTEXT;
  stream *one = calloc(1, sizeof *one);
  if (!one) return E_MEMORY;
  one->id = __sync_add_and_fetch(&streams, 1);
  *made = one;
  return OK;
}
int aclrtCreateStream(void **made) { return make_stream(made); }
int aclrtCreateStreamWithConfig(void **made, uint32_t priority, uint32_t flags) { return make_stream(made); }
int aclrtDestroyStream(void *old) {
  free(old);
  return OK;
}
int aclrtDestroyStreamForce(void *old) { return aclrtDestroyStream(old); }
int aclrtSynchronizeStream(void *one) { return lost(); }
int aclrtSynchronizeStreamWithTimeout(void *one, int32_t milliseconds) { return lost(); }
int aclrtStreamQuery(void *one, int *status) {
  *status = 0; /* complete */
  return lost();
}
int aclrtStreamGetId(void *one, int32_t *id) {
  *id = one ? ((stream *)one)->id : 0;
  return OK;
}
int aclrtStreamWaitEvent(void *one, void *awaited) { return lost(); }
int aclrtSetStreamFailureMode(void *one, uint64_t mode) { return OK; }
int aclrtSetStreamAttribute(void *one, int attribute, void *value) { return OK; }
int aclrtSetStreamOverflowSwitch(void *one, uint32_t flag) { return OK; }
int aclrtGetStreamOverflowSwitch(void *one, uint32_t *flag) {
  *flag = 0;
  return OK;
}

static int make_event(void **made) {
  *made = calloc(1, sizeof(event));
  return *made ? OK : E_MEMORY;
}
int aclrtCreateEvent(void **made) { return make_event(made); }
int aclrtCreateEventWithFlag(void **made, uint32_t flags) { return make_event(made); }
int aclrtCreateEventExWithFlag(void **made, uint32_t flags) { return make_event(made); }
int aclrtDestroyEvent(void *old) {
  free(old);
  return OK;
}
int aclrtRecordEvent(void *one, void *on) {
  clock_gettime(CLOCK_MONOTONIC, &((event *)one)->at);
  return lost();
}
int aclrtResetEvent(void *one, void *on) { return OK; }
int aclrtQueryEventStatus(void *one, int *status) {
  *status = 1; /* recorded */
  return lost();
}
int aclrtQueryEventWaitStatus(void *one, int *status) {
  *status = 0; /* complete */
  return lost();
}
int aclrtSynchronizeEvent(void *one) { return lost(); }
int aclrtSynchronizeEventWithTimeout(void *one, int32_t milliseconds) { return lost(); }
int aclrtEventElapsedTime(float *milliseconds, void *from, void *to) {
  const event *start = from, *end = to;
  *milliseconds = (end->at.tv_sec - start->at.tv_sec) * 1e3f + (end->at.tv_nsec - start->at.tv_nsec) / 1e6f;
  return lost();
}
int aclrtEventGetTimestamp(void *one, uint64_t *microseconds) {
  const event *recorded = one;
  *microseconds = recorded->at.tv_sec * 1000000ull + recorded->at.tv_nsec / 1000;
  return lost();
}

int aclrtSubscribeReport(uint64_t thread, void *one) { return OK; }
int aclrtUnSubscribeReport(uint64_t thread, void *one) { return OK; }
/* The thread that serves callbacks finds none to serve: they ran when they were launched. */
int aclrtProcessReport(int32_t milliseconds) {
  struct timespec wait = {0, 1000000L * (milliseconds < 0 || milliseconds > 100 ? 100 : milliseconds)};
  nanosleep(&wait, NULL);
  return OK;
}
int aclrtLaunchCallback(void (*function)(void *), void *argument, int blocks, void *on) {
  function(argument);
  return lost();
}
int aclrtLaunchHostFunc(void *on, void (*function)(void *), void *argument) {
  function(argument);
  return lost();
}
