/* A libnvidia-ml.so.1 of our own: what the real nvidia-ml-py loads in tests.
 *
 * It is scripted by the file that HORUS_TEST_NVML names, read anew at every call:
 *
 *   init CODE
 *   device UUID PARENT INDEX TOTAL RESERVED USED UTILIZATION MEMORY_UTILIZATION MODE MIG NAME...
 *   process UUID KIND PID BYTES          KIND: c, g or m; BYTES -1: not available
 *   load UUID PID PERCENT
 *   fail UUID FUNCTION CODE              FUNCTION "*": everything
 *
 * PARENT is "-" for a card; MIG is -1 (no MIG), 0 or 1. Layouts and codes are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef unsigned long long u64;
enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };
enum { MOST = 64, TEXT = 96 };

typedef struct { char uuid[TEXT], parent[TEXT], name[TEXT]; int index, mode, mig;
                 long long total, reserved, used; unsigned load, memory_load; } Device;
typedef struct { char uuid[TEXT], kind; unsigned pid; long long bytes; } Process;
typedef struct { char uuid[TEXT]; unsigned pid, percent; } Load;
typedef struct { char uuid[TEXT], function[TEXT]; int code; } Fail;

static Device devices[MOST]; static Process processes[MOST]; static Load loads[MOST];
static Fail fails[MOST]; static int n_devices, n_processes, n_loads, n_fails, init_code;
static int initialized;
/* A handle is the place of a UUID here, so that it outlives the device that it named. */
static char handles[MOST][TEXT]; static int n_handles;

static void script(void) {
  char line[512];
  FILE *file = fopen(getenv("HORUS_TEST_NVML"), "r");
  n_devices = n_processes = n_loads = n_fails = init_code = 0;
  while (file && fgets(line, sizeof line, file)) {
    Device d = {0}; Process p = {0}; Load l = {0}; Fail f = {0};
    sscanf(line, "init %d", &init_code);
    if (sscanf(line, "device %95s %95s %d %lld %lld %lld %u %u %d %d %95[^\n]", d.uuid, d.parent,
               &d.index, &d.total, &d.reserved, &d.used, &d.load, &d.memory_load, &d.mode, &d.mig,
               d.name) == 11) devices[n_devices++] = d;
    if (sscanf(line, "process %95s %c %u %lld", p.uuid, &p.kind, &p.pid, &p.bytes) == 4)
      processes[n_processes++] = p;
    if (sscanf(line, "load %95s %u %u", l.uuid, &l.pid, &l.percent) == 3) loads[n_loads++] = l;
    if (sscanf(line, "fail %95s %95s %d", f.uuid, f.function, &f.code) == 3) fails[n_fails++] = f;
  }
  if (file) fclose(file);
}

static void *handle_of(const char *uuid) {
  for (int i = 0; i < n_handles; i++) if (!strcmp(handles[i], uuid)) return handles[i];
  strcpy(handles[n_handles], uuid);
  return handles[n_handles++];
}

static Status failing(const char *uuid, const char *function) {
  for (int i = 0; i < n_fails; i++)
    if (!strcmp(fails[i].uuid, uuid) &&
        (!strcmp(fails[i].function, "*") || !strcmp(fails[i].function, function)))
      return fails[i].code;
  return SUCCESS;
}

/* The device behind a handle, or why there is none. */
static Status found(void *handle, const char *function, Device **device) {
  if (!initialized) return UNINITIALIZED;
  script();
  for (int i = 0; i < n_devices; i++)
    if (!strcmp(devices[i].uuid, (char *)handle)) {
      Status status = failing(devices[i].uuid, function);
      if (!status && strcmp(devices[i].parent, "-")) status = failing(devices[i].parent, "*");
      *device = &devices[i];
      return status;
    }
  return INVALID_ARGUMENT;
}

#define DEVICE(function) Device *d; Status status = found(handle, function, &d); \
  if (status) return status

Status nvmlInitWithFlags(unsigned flags) {
  (void)flags; script();
  if (!init_code) initialized = 1;
  return init_code;
}
Status nvmlShutdown(void) { initialized = 0; return SUCCESS; }
const char *nvmlErrorString(Status status) { (void)status; return "scripted"; }

Status nvmlDeviceGetCount_v2(unsigned *count) {
  if (!initialized) return UNINITIALIZED;
  script();
  *count = 0;
  for (int i = 0; i < n_devices; i++) *count += !strcmp(devices[i].parent, "-");
  return SUCCESS;
}
Status nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (!initialized) return UNINITIALIZED;
  script();
  for (int i = 0; i < n_devices; i++)
    if (!strcmp(devices[i].parent, "-") && devices[i].index == (int)index) {
      *handle = handle_of(devices[i].uuid);
      return failing(devices[i].uuid, "nvmlDeviceGetHandleByIndex");
    }
  return INVALID_ARGUMENT;
}
Status nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
  DEVICE("nvmlDeviceGetMigMode");
  if (d->mig < 0) return NOT_SUPPORTED;
  *current = *pending = (unsigned)d->mig;
  return SUCCESS;
}
Status nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
  DEVICE("nvmlDeviceGetMaxMigDeviceCount");
  *count = 7;
  return SUCCESS;
}
Status nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
  DEVICE("nvmlDeviceGetMigDeviceHandleByIndex");
  for (int i = 0; i < n_devices; i++)
    if (!strcmp(devices[i].parent, d->uuid) && devices[i].index == (int)index) {
      *slice = handle_of(devices[i].uuid);
      return SUCCESS;
    }
  return NOT_FOUND;
}
Status nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
  DEVICE("nvmlDeviceGetUUID");
  snprintf(text, length, "%s", d->uuid);
  return SUCCESS;
}
Status nvmlDeviceGetName(void *handle, char *text, unsigned length) {
  DEVICE("nvmlDeviceGetName");
  snprintf(text, length, "%s", d->name);
  return SUCCESS;
}
Status nvmlDeviceGetComputeMode(void *handle, int *mode) {
  DEVICE("nvmlDeviceGetComputeMode");
  *mode = d->mode;
  return SUCCESS;
}
typedef struct { u64 total, free, used; } Memory;
Status nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
  DEVICE("nvmlDeviceGetMemoryInfo");
  memory->total = (u64)d->total;
  memory->used = (u64)(d->used + d->reserved);
  memory->free = memory->total - memory->used;
  return SUCCESS;
}
#ifndef WITHOUT_MEMORY_V2
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
Status nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory) {
  DEVICE("nvmlDeviceGetMemoryInfo");
  memory->total = (u64)d->total;
  memory->reserved = (u64)d->reserved;
  memory->used = (u64)d->used;
  memory->free = memory->total - memory->reserved - memory->used;
  return SUCCESS;
}
#endif
typedef struct { unsigned gpu, memory; } Rates;
Status nvmlDeviceGetUtilizationRates(void *handle, Rates *rates) {
  DEVICE("nvmlDeviceGetUtilizationRates");
  if (strcmp(d->parent, "-") || d->mig == 1) return NOT_SUPPORTED;
  rates->gpu = d->load;
  rates->memory = d->memory_load;
  return SUCCESS;
}

typedef struct { unsigned pid; u64 bytes; unsigned gpu_instance, compute_instance; } ProcessInfo;
static Status listed(void *handle, const char *function, char kind, unsigned *count,
                     ProcessInfo *infos) {
  DEVICE(function);
  unsigned there = 0, room = *count;
  for (int i = 0; i < n_processes; i++) {
    if (processes[i].kind != kind || strcmp(processes[i].uuid, d->uuid)) continue;
    if (infos && there < room)
      infos[there] = (ProcessInfo){processes[i].pid, (u64)processes[i].bytes, ~0u, ~0u};
    there++;
  }
  *count = there;
  return there > room || (there && !infos) ? INSUFFICIENT_SIZE : SUCCESS;
}
#define LIST(name, version, kind) \
  Status name##version(void *handle, unsigned *count, ProcessInfo *infos) { \
    return listed(handle, #name, kind, count, infos); }
#ifdef WITHOUT_PROCESSES_V3
#define NEWEST _v2
#else
#define NEWEST _v3
#endif
#define PASTE(name, version, kind) LIST(name, version, kind)
PASTE(nvmlDeviceGetComputeRunningProcesses, NEWEST, 'c')
PASTE(nvmlDeviceGetGraphicsRunningProcesses, NEWEST, 'g')
PASTE(nvmlDeviceGetMPSComputeRunningProcesses, NEWEST, 'm')

typedef struct { unsigned pid; u64 time_stamp; unsigned sm, memory, encoder, decoder; } Sample;
Status nvmlDeviceGetProcessUtilization(void *handle, Sample *samples, unsigned *count, u64 since) {
  DEVICE("nvmlDeviceGetProcessUtilization");
  unsigned there = 0, room = *count;
  for (int i = 0; i < n_loads; i++) {
    if (strcmp(loads[i].uuid, d->uuid)) continue;
    if (samples && there < room)
      samples[there] = (Sample){loads[i].pid, since + 1, loads[i].percent, 0, 0, 0};
    there++;
  }
  *count = there;
  if (!there) return NOT_FOUND;
  return there > room || !samples ? INSUFFICIENT_SIZE : SUCCESS;
}
