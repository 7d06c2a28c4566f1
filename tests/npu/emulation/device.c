/* Process, devices, contexts, and what the emulation says of itself.
 *
 * RALLYPOINT_EMULATED_NPUS: the number of devices; without it there is none.
 */
#include "cann.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_DEVICES 64
#define HBM ((size_t)64 << 30)
#define CANN_VERSION "8.5.0" /* new enough for every function that the supported versions of torch_npu ask for */
#define DRIVER_VERSION "25.0.0"

typedef struct {
  int device;
} context;

static context contexts[MOST_DEVICES];
static int in_use[MOST_DEVICES];
static __thread context *current;

int device_count(void) {
  const char *wanted = getenv("RALLYPOINT_EMULATED_NPUS");
  int count = wanted ? atoi(wanted) : 0;
  return count < 0 ? 0 : count > MOST_DEVICES ? MOST_DEVICES : count;
}

int current_device(void) { return current ? current->device : -1; }
size_t device_memory(void) { return HBM; }

static int exists(int32_t device) { return device >= 0 && device < device_count(); }

int aclInit(const char *configuration) {
  fprintf(stderr, "CANN: emulated (%d devices)\n", device_count());
  return OK;
}
int aclFinalize(void) { return OK; }
void aclAppLog(void) {}
const char *aclrtGetSocName(void) { return "Ascend910B1"; }

int aclrtGetDeviceCount(uint32_t *count) {
  *count = (uint32_t)device_count();
  return OK;
}

int aclrtSetDevice(int32_t device) {
  if (!exists(device)) return E_DEVICE;
  contexts[device].device = device;
  in_use[device] = 1;
  current = &contexts[device];
  return OK;
}

int aclrtGetDevice(int32_t *device) {
  if (!current) return E_CONTEXT;
  *device = current->device;
  return OK;
}

int aclrtResetDevice(int32_t device) {
  if (!exists(device)) return E_DEVICE;
  in_use[device] = 0;
  if (current == &contexts[device]) current = NULL;
  return OK;
}
int aclrtResetDeviceForce(int32_t device) { return aclrtResetDevice(device); }

int aclrtCreateContext(void **made, int32_t device) {
  int error = aclrtSetDevice(device);
  if (!error) *made = current;
  return error;
}
int aclrtDestroyContext(void *old) {
  if (current == old) current = NULL;
  return OK;
}
int aclrtGetCurrentContext(void **found) {
  if (!current) return E_CONTEXT;
  *found = current;
  return OK;
}
int aclrtSetCurrentContext(void *wanted) {
  if (!wanted) return E_PARAMETER;
  current = wanted;
  return OK;
}
int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
  if (!exists(device)) return E_DEVICE;
  if (flags) *flags = 0;
  if (active) *active = in_use[device];
  return OK;
}

int aclrtSynchronizeDevice(void) { return lost(); }
int aclrtSynchronizeDeviceWithTimeout(int32_t milliseconds) { return lost(); }
int aclrtPeekAtLastError(int level) { return lost(); }
int aclrtGetLastError(int level) { return lost(); }

int aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
  *can = device != peer;
  return OK;
}
int aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) { return OK; }

/* Numbers of cores and the size of the second-level cache, of an Ascend 910B1. */
int aclGetDeviceCapability(uint32_t device, int what, int64_t *value) {
  static const int64_t known[] = {24, 48, 192 << 20};
  if (what < 0 || what > 2) return E_UNSUPPORTED;
  *value = known[what];
  return OK;
}
int aclrtGetDeviceInfo(uint32_t device, int what, int64_t *value) {
  if (what != 101 && what != 102 && what != 201) return E_UNSUPPORTED;
  *value = what == 201 ? 48 : 24;
  return OK;
}
int aclrtGetRunMode(int *mode) {
  *mode = 1; /* the program runs on the host */
  return OK;
}

/* Settings that change no result of what is emulated: accepted. */
int aclrtSetDeviceSatMode(int mode) { return OK; }
int aclrtGetDeviceSatMode(int *mode) {
  *mode = 1;
  return OK;
}
int aclrtSetOpExecuteTimeOut(uint32_t seconds) { return OK; }
int aclrtSetOpExecuteTimeOutV2(uint64_t wanted, uint64_t *actual) {
  *actual = wanted;
  return OK;
}
int aclrtSetOpWaitTimeout(uint32_t seconds) { return OK; }
static int64_t settings[16];
int aclrtSetSysParamOpt(int which, int64_t value) {
  if (which < 0 || which > 15) return E_PARAMETER;
  settings[which] = value;
  return OK;
}
int aclrtGetSysParamOpt(int which, int64_t *value) {
  if (which < 0 || which > 15) return E_PARAMETER;
  *value = settings[which];
  return OK;
}
int aclrtCtxSetSysParamOpt(int which, int64_t value) { return aclrtSetSysParamOpt(which, value); }
int aclrtCtxGetSysParamOpt(int which, int64_t *value) { return aclrtGetSysParamOpt(which, value); }
int aclSetCompileopt(int which, const char *value) { return OK; }
size_t aclGetCompileoptSize(int which) { return sizeof "disable"; }
int aclGetCompileopt(int which, char *value, size_t size) {
  if (size < sizeof "disable") return E_PARAMETER;
  memcpy(value, "disable", sizeof "disable");
  return OK;
}
int aclmdlInitDump(void) { return OK; }
int aclmdlSetDump(const char *configuration) { return OK; }
int aclmdlFinalizeDump(void) { return OK; }

typedef struct {
  char version[128], major[64], minor[64], release[64], patch[64], reserved[128];
} package_version;

int aclsysGetCANNVersion(int package, package_version *found) {
  const int driver = 7;
  memset(found, 0, sizeof *found);
  snprintf(found->version, sizeof found->version, "%s", package == driver ? DRIVER_VERSION : CANN_VERSION);
  sscanf(found->version, "%63[^.].%63[^.].%63s", found->major, found->minor, found->release);
  return OK;
}
int aclsysGetVersionStr(char *package, char *version) {
  strcpy(version, CANN_VERSION);
  return OK;
}
int aclsysGetVersionNum(char *package, int32_t *version) {
  int major, minor, release;
  sscanf(CANN_VERSION, "%d.%d.%d", &major, &minor, &release);
  *version = major * 10000000 + minor * 100000 + release * 1000;
  return OK;
}
