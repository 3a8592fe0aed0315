// A library that the driver loads into a program, which writes when each kernel and copy began and ended on the device:
//   gcc -O2 -shared -fPIC -I$CUPTI/include -I$CUDA/include trace.c -o trace.so -L$CUPTI/lib64 -lcupti -Wl,-rpath,$CUPTI/lib64
//   TRACE=steps.txt CUDA_INJECTION64_PATH=$PWD/trace.so PROGRAM...
// A line is "kernel|copy START END GRAPH NAME BLOCKS|BYTES"; times are nanoseconds, GRAPH is 0 outside of graphs.
#include <cupti.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const size_t BUFFER_BYTES = 64 << 20;
static FILE *trace;

static void give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = aligned_alloc(64, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *most = 0;
}

static void write_kernel(const CUpti_ActivityKernel9 *kernel) {
    fprintf(trace, "kernel %" PRIu64 " %" PRIu64 " %u %s %d\n", kernel->start, kernel->end, kernel->graphId, kernel->name,
            kernel->gridX * kernel->gridY * kernel->gridZ);
}

static void write_copy(const CUpti_ActivityMemcpy5 *copy) {
    const char *way = copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "to_device"
                      : copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "to_host"
                                                                          : "on_device";
    fprintf(trace, "copy %" PRIu64 " %" PRIu64 " %u %s %" PRIu64 "\n", copy->start, copy->end, copy->graphId, way,
            copy->bytes);
}

static void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)size;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) write_kernel((const CUpti_ActivityKernel9 *)record);
        if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) write_copy((const CUpti_ActivityMemcpy5 *)record);
    }
    free(buffer);
    size_t dropped = 0;
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS && dropped > 0)
        // A line that steps.py refuses: what is missing would count as another launch's time.
        fprintf(trace, "dropped %zu\n", dropped);
}

static void finish(void) {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fclose(trace);
}

// The name that the driver calls.
int InitializeInjection(void) {
    const char *path = getenv("TRACE");
    trace = path ? fopen(path, "w") : NULL;
    if (!trace) {
        fprintf(stderr, "TRACE must name a file that can be written\n");
        return 0;
    }
    if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS) {
        fprintf(stderr, "CUPTI cannot trace this process\n");
        return 0;
    }
    return atexit(finish) == 0;
}
