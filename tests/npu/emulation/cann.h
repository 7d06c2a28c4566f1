/* What the files of the emulation share.
 *
 * The emulation stands in for the CANN libraries that torch_npu calls. Device memory is host memory, and whatever is
 * asked for is carried out at once by the thread that asks, so streams and events are always complete.
 *
 * What is not emulated is refused: the devices of the process are lost (loss.c), and nothing that depends on one
 * succeeds any more.
 */
#ifndef RALLYPOINT_CANN_H
#define RALLYPOINT_CANN_H

#include <stddef.h>
#include <stdint.h>

/* Error codes as CANN's documentation of aclError lists them. */
enum {
  OK = 0,
  E_PARAMETER = 107000,
  E_DEVICE = 107001,
  E_CONTEXT = 107002,
  E_MEMORY = 207001,
  E_UNSUPPORTED = 207000,
  E_LOST = 507899,
};

/* Element types, as aclDataType numbers them. */
enum {
  FLOAT32 = 0,
  FLOAT16 = 1,
  INT8 = 2,
  INT32 = 3,
  UINT8 = 4,
  INT16 = 6,
  UINT16 = 7,
  UINT32 = 8,
  INT64 = 9,
  UINT64 = 10,
  FLOAT64 = 11,
  BOOL = 12,
  COMPLEX64 = 16,
  COMPLEX128 = 17,
  BFLOAT16 = 27,
};

#define DIMS 16

typedef struct {
  int dims, type;
  int64_t size[DIMS], stride[DIMS], offset; /* in elements */
  char *data;
} tensor;

typedef struct {
  int type;
  double real;
  int64_t whole;
} scalar;

typedef struct {
  uint64_t count;
  int64_t value[];
} int_array;

typedef struct {
  uint64_t count;
  tensor *of[];
} tensor_list;

/* An operator with its operands, between aclnn...GetWorkspaceSize, which plans it, and aclnn..., which runs it. */
typedef struct executor {
  const char *name;
  int (*run)(const struct executor *);
  const tensor *out, *a, *b;
  const scalar *number, *alpha;
  int64_t constant;
  const int_array *numbers;
  const tensor_list *tensors;
} executor;

/* loss.c */
int lose(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
int lost(void);
#define refuse(what, ...) lose(E_LOST, what " is not emulated", ##__VA_ARGS__)

/* device.c: -1 when this thread has chosen none */
int current_device(void);
int device_count(void);
size_t device_memory(void);

/* memory.c */
size_t memory_used(int device);

/* element.c */
size_t element_size(int type);
int is_number(int type);
int is_whole(int type);
double load_real(const void *from, int type);
int64_t load_whole(const void *from, int type);
void store_real(void *to, int type, double value);
void store_whole(void *to, int type, int64_t value);
double rounded(double value, int type);

/* tensor.c */
typedef void element_function(const executor *, char *out, const char *a, const char *b);
int plan(uint64_t *workspace, executor **made, executor planned);
int launch(executor *planned);
int each_element(const executor *, element_function *);

/* The second half of every operator: run what was planned. */
#define LAUNCH(name) \
  int name(void *workspace, uint64_t size, executor *planned, void *stream) { return launch(planned); }

#endif
