/* A scripted libnvidia-ml.so.1; README.md beside it says what a script may hold. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int code_t;
#define EXPORT __attribute__((visibility("default")))
enum { GOOD = 0, UNSTARTED = 1, INVALID = 2, ABSENT = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMEOUT = 10, VERSION = 25 };
enum { MOST_GPUS = 16, MOST_SERIES = 512, MOST_ROWS = 4096 };

/* ---- the script: series of values by GPU and key */
typedef struct { double t_us, value; int ramp; char text[96]; } row_t;
typedef struct { int gpu; char key[64]; int count; row_t *rows; } series_t;
static series_t all[MOST_SERIES];
static int series_count, gpu_count = 1, started, manual;
static double manual_us;
static u64 epoch_ns, epoch_unix_us;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static u64 clock_ns(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static double now_us(void) { return manual ? manual_us : (clock_ns(CLOCK_MONOTONIC) - epoch_ns) / 1e3; }

static series_t *series(int gpu, const char *key) {
    for (int pass = 0; pass < 2; pass++)                 /* the GPU's own goes before everybody's */
        for (int i = 0; i < series_count; i++)
            if (all[i].gpu == (pass ? -1 : gpu) && !strcmp(all[i].key, key)) return &all[i];
    return NULL;
}
static int at(const series_t *s, double t) {             /* the last row at or before t; -1: none */
    int low = 0, high = s->count;
    while (low < high) { int mid = (low + high) / 2; if (s->rows[mid].t_us <= t) low = mid + 1; else high = mid; }
    return low - 1;
}
static double value_in(const series_t *s, int i, double t) {
    const row_t *r = &s->rows[i];
    if (i + 1 >= s->count || !r[1].ramp) return r->value;
    return r->value + (r[1].value - r->value) * (t - r->t_us) / (r[1].t_us - r->t_us);
}
static int look(int gpu, const char *key, double t, double *out) {
    const series_t *s = series(gpu, key);
    int i = s ? at(s, t) : -1;
    if (i < 0) return 0;
    *out = value_in(s, i, t);
    return 1;
}
static double get(int gpu, const char *key, double absent) { double v; return look(gpu, key, now_us(), &v) ? v : absent; }
static int has(int gpu, const char *key) { double v; return look(gpu, key, now_us(), &v); }
static const char *text(int gpu, const char *key, const char *absent) {
    const series_t *s = series(gpu, key);
    int i = s ? at(s, now_us()) : -1;
    return i < 0 ? absent : s->rows[i].text;
}
/* the integral over [a, b], in value times us; with a mask: the time for which one of its bits was set */
static double integral(int gpu, const char *key, double a, double b, u64 mask) {
    const series_t *s = series(gpu, key);
    double sum = 0;
    if (!s) return 0;
    for (int i = 0; i < s->count; i++) {
        double from = s->rows[i].t_us, to = i + 1 < s->count ? s->rows[i + 1].t_us : b;
        if (from < a) from = a;
        if (to > b) to = b;
        if (to <= from) continue;
        double mean = mask ? !!((u64)s->rows[i].value & mask) : (value_in(s, i, from) + value_in(s, i, to)) / 2;
        sum += mean * (to - from);
    }
    return sum;
}

static void add(double t_us, int gpu, const char *key, const char *value, int ramp) {
    series_t *s = NULL;
    for (int i = 0; i < series_count && !s; i++) if (all[i].gpu == gpu && !strcmp(all[i].key, key)) s = &all[i];
    if (!s) {
        if (series_count == MOST_SERIES) return;
        s = &all[series_count++];
        s->gpu = gpu; s->count = 0;
        snprintf(s->key, sizeof s->key, "%s", key);
    }
    if (s->count == MOST_ROWS) return;
    s->rows = realloc(s->rows, (s->count + 1) * sizeof *s->rows);
    int i = s->count++;
    while (i > 0 && s->rows[i - 1].t_us > t_us) { s->rows[i] = s->rows[i - 1]; i--; }
    s->rows[i].t_us = t_us; s->rows[i].ramp = ramp;
    s->rows[i].value = !strncmp(value, "0x", 2) ? (double)strtoull(value, NULL, 16) : strtod(value, NULL);
    snprintf(s->rows[i].text, sizeof s->rows[i].text, "%s", value);
}
EXPORT int fake_nvml_load(const char *path) {
    FILE *file = fopen(path, "r");
    char line[512];
    double v;
    if (!file) return -1;
    for (int i = 0; i < series_count; i++) { free(all[i].rows); all[i].rows = NULL; }
    series_count = 0;
    while (fgets(line, sizeof line, file)) {
        char *cell[5] = {0};
        int n = 0;
        line[strcspn(line, "\r\n")] = 0;
        if (!line[0] || line[0] == '#') continue;
        for (char *p = line; n < 5; ) { cell[n++] = p; p = strchr(p, ','); if (!p) break; *p++ = 0; }
        if (n < 4) continue;
        add(cell[0][0] ? atof(cell[0]) * 1e3 : -1e15, cell[1][0] == '*' ? -1 : atoi(cell[1]), cell[2], cell[3],
            n > 4 && !strcmp(cell[4], "lin"));
    }
    fclose(file);
    gpu_count = look(0, "sys.gpus", 0, &v) ? (int)v : 1;
    return series_count;
}
EXPORT void fake_nvml_advance_us(double us) { manual_us += us; }
static u64 calls;
EXPORT u64 fake_nvml_calls(void) { return calls; }

/* every entry: counted; may take its time, may refuse */
static code_t enter(const char *function, int gpu) {
    char key[96];
    double v;
    size_t n = strlen(function);
    pthread_mutex_lock(&guard);
    calls++;
    pthread_mutex_unlock(&guard);
    if (!started) return UNSTARTED;
    if (n > 3 && function[n - 3] == '_' && function[n - 2] == 'v') n -= 3;     /* without its version */
    snprintf(key, sizeof key, "cost.%.*s", (int)n, function);
    if ((look(gpu, key, now_us(), &v) || look(gpu, "cost.*", now_us(), &v)) && v > 0) usleep((useconds_t)v);
    snprintf(key, sizeof key, "error.%.*s", (int)n, function);
    return look(gpu, key, now_us(), &v) ? (code_t)v : GOOD;
}
#define GPU(h) ((int)(intptr_t)(h) - 0x1000)
#define ENTER(h) do { if (GPU(h) < 0 || GPU(h) >= gpu_count) return started ? INVALID : UNSTARTED; \
    code_t code_ = enter(__func__, GPU(h)); if (code_) return code_; } while (0)
#define ENTER_ANY() do { code_t code_ = enter(__func__, 0); if (code_) return code_; } while (0)
#define NEED(h, key) do { if (!has(GPU(h), key)) return ABSENT; } while (0)
static code_t put(char *to, u32 size, const char *from) { if (strlen(from) >= size) return TOO_SMALL; strcpy(to, from); return GOOD; }

/* ---- the system */
EXPORT code_t nvmlInitWithFlags(u32 flags) {
    const char *clock = getenv("FAKE_NVML_CLOCK"), *path = getenv("FAKE_NVML_SCRIPT");
    (void)flags;
    if (!started) {
        manual = clock && !strcmp(clock, "manual");
        epoch_ns = clock_ns(CLOCK_MONOTONIC);
        epoch_unix_us = clock_ns(CLOCK_REALTIME) / 1000;
        manual_us = 0;
        if (path) fake_nvml_load(path);
    }
    if (has(0, "cost.nvmlInit")) usleep((useconds_t)get(0, "cost.nvmlInit", 0));
    if (has(0, "error.nvmlInit")) return (code_t)get(0, "error.nvmlInit", 0);
    started++;
    return GOOD;
}
EXPORT code_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT code_t nvmlShutdown(void) { ENTER_ANY(); started--; return GOOD; }
EXPORT const char *nvmlErrorString(code_t code) { (void)code; return "scripted"; }
EXPORT code_t nvmlSystemGetDriverVersion(char *to, u32 n) { ENTER_ANY(); return put(to, n, text(0, "sys.driver", "580.95.05")); }
EXPORT code_t nvmlDeviceGetCount_v2(u32 *n) { ENTER_ANY(); *n = (u32)gpu_count; return GOOD; }

/* ---- which GPU */
static void name_of(int gpu, char *to) { char own[64]; snprintf(own, sizeof own, "GPU-00000000-0000-4000-8000-%012d", gpu); strcpy(to, text(gpu, "uuid", own)); }
static void place_of(int gpu, char *to) { char own[64]; snprintf(own, sizeof own, "00000000:%02X:00.0", 0x18 + gpu); strcpy(to, text(gpu, "pci", own)); }
static code_t search(const char *wanted, void **h, void (*naming)(int, char *)) {
    char own[128];
    for (int gpu = 0; gpu < gpu_count; gpu++) { naming(gpu, own); if (!strcasecmp(own, wanted)) { *h = (void *)(intptr_t)(0x1000 + gpu); return GOOD; } }
    return NOT_FOUND;
}
EXPORT code_t nvmlDeviceGetHandleByIndex_v2(u32 i, void **h) { ENTER_ANY(); if ((int)i >= gpu_count) return INVALID; *h = (void *)(intptr_t)(0x1000 + i); return GOOD; }
EXPORT code_t nvmlDeviceGetHandleByUUID(const char *uuid, void **h) { ENTER_ANY(); return search(uuid, h, name_of); }
EXPORT code_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **h) { ENTER_ANY(); return search(bus, h, place_of); }
EXPORT code_t nvmlDeviceGetIndex(void *h, u32 *i) { ENTER(h); *i = (u32)GPU(h); return GOOD; }
EXPORT code_t nvmlDeviceGetUUID(void *h, char *to, u32 n) { ENTER(h); char own[128]; name_of(GPU(h), own); return put(to, n, own); }
EXPORT code_t nvmlDeviceGetMigMode(void *h, u32 *now, u32 *next) { ENTER(h); NEED(h, "mig"); *now = *next = (u32)get(GPU(h), "mig", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetVirtualizationMode(void *h, u32 *mode) { ENTER(h); *mode = (u32)get(GPU(h), "virtual", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetGpuInstanceId(void *h, u32 *i) { ENTER(h); *i = 1; return GOOD; }
EXPORT code_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **whole) { ENTER(h); *whole = h; return GOOD; }

/* ---- sensors */
typedef struct { u32 gpu, memory; } rates_t;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_t;
typedef struct { u32 version, sensor; int celsius; } temperature_t;
EXPORT code_t nvmlDeviceGetUtilizationRates(void *h, rates_t *r) { ENTER(h); NEED(h, "util.gpu"); r->gpu = (u32)get(GPU(h), "util.gpu", 0); r->memory = (u32)get(GPU(h), "util.mem", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetMemoryInfo_v2(void *h, memory_t *m) {
    ENTER(h); NEED(h, "mem.total");
    if (m->version != 0x02000028) return VERSION;
    m->total = get(GPU(h), "mem.total", 0); m->used = get(GPU(h), "mem.used", 0); m->reserved = get(GPU(h), "mem.reserved", 0);
    m->free = m->total - m->used - m->reserved;
    return GOOD;
}
#define READING(function, key) EXPORT code_t function(void *h, u32 *v) { ENTER(h); NEED(h, key); *v = (u32)get(GPU(h), key, 0); return GOOD; }
READING(nvmlDeviceGetPowerUsage, "power.mw")
READING(nvmlDeviceGetEnforcedPowerLimit, "power.limit_mw")
READING(nvmlDeviceGetPowerManagementDefaultLimit, "power.limit_mw")
static u64 energy_mj(int gpu) { double t = now_us(), p = get(gpu, "period.energy_us", 0); if (p > 0) t = floor(t / p) * p; return (u64)(integral(gpu, "power.mw", 0, t, 0) / 1e6); }
EXPORT code_t nvmlDeviceGetTotalEnergyConsumption(void *h, u64 *mj) { ENTER(h); NEED(h, "power.mw"); *mj = energy_mj(GPU(h)); return GOOD; }
EXPORT code_t nvmlDeviceGetTemperatureV(void *h, temperature_t *t) { ENTER(h); NEED(h, "temp.gpu"); t->celsius = (int)get(GPU(h), "temp.gpu", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetTemperature(void *h, u32 sensor, u32 *t) { ENTER(h); (void)sensor; NEED(h, "temp.gpu"); *t = (u32)get(GPU(h), "temp.gpu", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetClockInfo(void *h, u32 kind, u32 *mhz) {
    ENTER(h);
    const char *key = kind == 1 ? "clock.sm" : kind == 2 ? "clock.mem" : "clock.other";
    NEED(h, key);
    *mhz = (u32)get(GPU(h), key, 0);
    return GOOD;
}
static code_t reasons(void *h, u64 *r) { *r = (u64)get(GPU(h), "clocks.reasons", 0); return GOOD; }
EXPORT code_t nvmlDeviceGetCurrentClocksEventReasons(void *h, u64 *r) { ENTER(h); return reasons(h, r); }
EXPORT code_t nvmlDeviceGetCurrentClocksThrottleReasons(void *h, u64 *r) { ENTER(h); return reasons(h, r); }

/* ---- processes */
typedef struct { u32 pid; u64 used; u32 instance, part; } process_t;
static code_t processes(void *h, const char *kind, u32 *n, process_t *out) {
    u32 room = out ? *n : 0, k = 0;
    size_t head = strlen(kind);
    for (int i = 0; i < series_count; i++) {
        double v;
        if (strncmp(all[i].key, kind, head) || (all[i].gpu != GPU(h) && all[i].gpu != -1)) continue;
        if (!look(GPU(h), all[i].key, now_us(), &v) || v < 0) continue;
        const char *who = all[i].key + head;
        if (k < room) out[k] = (process_t){!strcmp(who, "self") ? (u32)getpid() : (u32)atoi(who), (u64)v, ~0u, ~0u};
        k++;
    }
    *n = k;
    return k > room ? TOO_SMALL : GOOD;
}
EXPORT code_t nvmlDeviceGetComputeRunningProcesses_v3(void *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "proc.", n, out); }
EXPORT code_t nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "mps.", n, out); }

/* ---- fields */
typedef struct { u32 id, scope; int64_t ts, latency; u32 type; int code; union { double d; u32 ui; u64 ull; } v; } field_t;
enum { COUNT, RATE, MASK, NOW };
/* of 32 bits, as an H200 answers them; PCIe's bytes begin anew after 4 GiB */
static int narrow(u32 id) { return id == 82 || id == 94 || id == 185 || id == 186 || id == 197 || id == 198; }
static const struct { u32 id; int kind; const char *key; double scale; u64 mask; } fields[] = {
    {3, COUNT, "ecc.sbe", 1, 0}, {4, COUNT, "ecc.dbe", 1, 0}, {94, COUNT, "pcie.replay", 1, 0},
    {142, COUNT, "remap.cor", 1, 0}, {143, COUNT, "remap.unc", 1, 0}, {144, COUNT, "remap.pending", 1, 0}, {145, COUNT, "remap.failed", 1, 0},
    {82, NOW, "temp.mem", 1, 0}, {185, NOW, "power.mw", 1, 0}, {186, NOW, "power.mw", 1, 0},
    {197, RATE, "pcie.tx_kbs", 1024 / 1e6, 0}, {198, RATE, "pcie.rx_kbs", 1024 / 1e6, 0},
    {138, RATE, "nvlink.tx_kbs", 1 / 1e6, 0}, {139, RATE, "nvlink.rx_kbs", 1 / 1e6, 0},
    {74, MASK, "clocks.reasons", 1e3, 0x4}, {75, MASK, "clocks.reasons", 1e3, 0x60}, {76, MASK, "clocks.reasons", 1e3, 0x10},
    {269, MASK, "clocks.reasons", 1e3, 0x20}, {270, MASK, "clocks.reasons", 1e3, 0x40}, {271, MASK, "clocks.reasons", 1e3, 0x80},
};
static void answer(int gpu, field_t *f) {
    char key[48];
    snprintf(key, sizeof key, "error.field.%u", f->id);
    f->ts = (int64_t)(epoch_unix_us + now_us()); f->v.ull = 0; f->type = 3;
    f->code = (int)get(gpu, key, 0);
    if (f->code) return;
    if (f->id == 83 && has(gpu, "power.mw")) { f->v.ull = energy_mj(gpu); return; }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].id != f->id) continue;
        if (!has(gpu, fields[i].key)) break;
        u64 number = fields[i].kind == COUNT || fields[i].kind == NOW
            ? (u64)get(gpu, fields[i].key, 0)
            : (u64)(integral(gpu, fields[i].key, 0, now_us(), fields[i].mask) * fields[i].scale);
        if (narrow(f->id)) { f->type = 1; f->v.ui = (u32)number; }
        else f->v.ull = number;
        return;
    }
    f->code = ABSENT;
}
EXPORT code_t nvmlDeviceGetFieldValues(void *h, int n, field_t *f) { ENTER(h); for (int i = 0; i < n; i++) answer(GPU(h), &f[i]); return GOOD; }

/* ---- the driver's own samples: one each 20 ms, 120 are kept */
typedef struct { u64 ts; union { u32 ui; u64 ull; } v; } sample_t;
EXPORT code_t nvmlDeviceGetSamples(void *h, u32 kind, u64 since, u32 *type, u32 *n, sample_t *out) {
    ENTER(h);
    static const char *const keys[] = {"power.mw", "util.gpu", "util.mem", NULL, NULL, "clock.sm", "clock.mem"};
    if (kind > 6 || !keys[kind]) return ABSENT;
    NEED(h, keys[kind]);
    long newest = (long)(now_us() / 20000), first = newest < 119 ? 0 : newest - 119;
    u32 room = out ? *n : 0, k = 0;
    *type = 1;
    for (long i = first; i <= newest; i++) {
        u64 ts = epoch_unix_us + (u64)i * 20000;
        double v = 0;
        if (ts <= since) continue;
        if (k < room) { look(GPU(h), keys[kind], i * 20000.0, &v); out[k].ts = ts; out[k].v.ull = 0; out[k].v.ui = (u32)v; }
        k++;
    }
    if (out && k > room) k = room;
    *n = k;
    return k ? GOOD : NOT_FOUND;
}

/* ---- what each process used, sampled at the same times: its newest sample above 0 */
typedef struct { u32 pid; u64 ts; u32 sm, mem, enc, dec; } use_t;
EXPORT code_t nvmlDeviceGetProcessUtilization(void *h, use_t *out, u32 *n, u64 since) {
    ENTER(h);
    long newest = (long)(now_us() / 20000), first = newest < 119 ? 0 : newest - 119;
    u32 room = out ? *n : 0, k = 0;
    for (int s = 0; s < series_count; s++) {
        if (strncmp(all[s].key, "use.", 4) || (all[s].gpu != GPU(h) && all[s].gpu != -1)) continue;
        for (long i = newest; i >= first; i--) {
            u64 ts = epoch_unix_us + (u64)i * 20000;
            double v = 0;
            if (ts <= since) break;
            if (!look(GPU(h), all[s].key, i * 20000.0, &v) || v <= 0) continue;
            if (k < room) out[k] = (use_t){(u32)atoi(all[s].key + 4), ts, (u32)v, 0, 0, 0};
            k++;
            break;
        }
    }
    *n = k;
    return !k ? NOT_FOUND : k > room ? TOO_SMALL : GOOD;
}

/* ---- events */
typedef struct { int gpu; double asked_us; } events_t;
typedef struct { void *device; u64 type, data; u32 instance, part; } event_t;
EXPORT code_t nvmlEventSetCreate(events_t **set) { ENTER_ANY(); *set = calloc(1, sizeof **set); return GOOD; }
EXPORT code_t nvmlDeviceRegisterEvents(void *h, u64 types, events_t *set) { ENTER(h); (void)types; set->gpu = GPU(h); set->asked_us = now_us(); return GOOD; }
EXPORT code_t nvmlEventSetWait_v2(events_t *set, event_t *e, u32 ms) {
    code_t code = enter(__func__, set->gpu);
    const series_t *s = series(set->gpu, "xid");
    (void)ms;
    if (code) return code;
    for (int i = 0; s && i < s->count; i++)
        if (s->rows[i].t_us > set->asked_us && s->rows[i].t_us <= now_us()) {
            set->asked_us = s->rows[i].t_us;
            memset(e, 0, sizeof *e);
            e->type = 8; e->data = (u64)s->rows[i].value;
            return GOOD;
        }
    return TIMEOUT;
}
EXPORT code_t nvmlEventSetFree(events_t *set) { ENTER_ANY(); free(set); return GOOD; }

/* ---- GPM */
typedef struct { int gpu; double t_us; } gpm_t;
typedef struct { u32 id; int code; double value; const char *names[3]; } metric_t;
typedef struct { u32 version, n; gpm_t *a, *b; metric_t metrics[]; } metrics_t;
EXPORT code_t nvmlGpmQueryDeviceSupport(void *h, u32 *support) { ENTER(h); support[1] = (u32)get(GPU(h), "gpm", 0); return GOOD; }
EXPORT code_t nvmlGpmSampleAlloc(gpm_t **s) { ENTER_ANY(); *s = calloc(1, sizeof **s); return GOOD; }
EXPORT code_t nvmlGpmSampleFree(gpm_t *s) { ENTER_ANY(); free(s); return GOOD; }
static code_t take(void *h, gpm_t *s) { if (!get(GPU(h), "gpm", 0)) return ABSENT; s->gpu = GPU(h); s->t_us = now_us(); return GOOD; }
EXPORT code_t nvmlGpmSampleGet(void *h, gpm_t *s) { ENTER(h); return take(h, s); }
EXPORT code_t nvmlGpmMigSampleGet(void *h, u32 instance, gpm_t *s) { ENTER(h); (void)instance; return take(h, s); }
EXPORT code_t nvmlGpmMetricsGet(metrics_t *m) {
    ENTER_ANY();
    if (m->version != 1) return VERSION;
    if (m->b->t_us - m->a->t_us <= 100000) return INVALID;
    for (u32 i = 0; i < m->n; i++) {
        char key[32];
        metric_t *one = &m->metrics[i];
        snprintf(key, sizeof key, "gpm.%u", one->id);
        one->names[0] = one->names[1] = one->names[2] = "";
        one->code = has(m->a->gpu, key) ? GOOD : ABSENT;
        one->value = one->code ? 0 : integral(m->a->gpu, key, m->a->t_us, m->b->t_us, 0) / (m->b->t_us - m->a->t_us);
    }
    return GOOD;
}

/* ---- what is asked once of each GPU */
typedef struct { u64 total, free, used; } memory_v1_t;
EXPORT code_t nvmlDeviceGetName(void *h, char *to, u32 n) { ENTER(h); return put(to, n, text(GPU(h), "name", "NVIDIA H200")); }
EXPORT code_t nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    ENTER(h); NEED(h, "cc");
    double both = get(GPU(h), "cc", 0);
    *major = (int)both;
    *minor = (int)((both - *major) * 10 + 0.5);
    return GOOD;
}
EXPORT code_t nvmlDeviceGetMemoryInfo(void *h, memory_v1_t *m) {
    ENTER(h); NEED(h, "mem.total");
    m->total = get(GPU(h), "mem.total", 0);
    m->used = get(GPU(h), "mem.used", 0) + get(GPU(h), "mem.reserved", 0);
    m->free = m->total - m->used;
    return GOOD;
}
EXPORT code_t nvmlDeviceGetMaxClockInfo(void *h, u32 kind, u32 *mhz) {
    ENTER(h);
    const char *key = kind == 1 ? "clock.sm_max" : kind == 2 ? "clock.mem" : "clock.other";
    NEED(h, key);
    *mhz = (u32)get(GPU(h), key, 0);
    return GOOD;
}
EXPORT code_t nvmlDeviceGetEccMode(void *h, u32 *now, u32 *next) { ENTER(h); NEED(h, "ecc.mode"); *now = *next = (u32)get(GPU(h), "ecc.mode", 0); return GOOD; }
