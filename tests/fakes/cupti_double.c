/* A libcupti that counts two kernels, compiled against NVIDIA's own headers: the
   compiler says where a field lies, and each function what size it was told. */
#include <stdbool.h> /* which the headers of 13.1 do not include */
#include <string.h>
#include "cupti_target.h"
#include "cupti_version.h"
#include "cupti_profiler_host.h"
#include "cupti_range_profiler.h"
#include "cupti_pmsampling.h"

#define DOUBLE(function, type, body)                                                   \
  CUptiResult function(type *p) {                                                      \
    if (p->structSize != type##_STRUCT_SIZE || p->pPriv)                               \
      return CUPTI_ERROR_INVALID_PARAMETER;                                            \
    body return CUPTI_SUCCESS;                                                         \
  }
#define OBJECT ((void *)0x77)

static size_t launches, pass;
static uint8_t *decoded_into;
static CUpti_ProfilerRange kind;
static int counting;

void double_launch(void) { launches += counting; }
CUptiResult cuptiGetVersion(uint32_t *version) { return *version = CUPTI_API_VERSION, 0; }

DOUBLE(cuptiProfilerInitialize, CUpti_Profiler_Initialize_Params, )
DOUBLE(cuptiProfilerDeviceSupported, CUpti_Profiler_DeviceSupported_Params, {
  if (p->cuDevice != 3) return CUPTI_ERROR_INVALID_DEVICE;
  p->isSupported = p->architecture = p->sli = p->vGpu = p->confidentialCompute = p->cmp =
      p->wsl = CUPTI_PROFILER_CONFIGURATION_SUPPORTED;
})
DOUBLE(cuptiDeviceGetChipName, CUpti_Device_GetChipName_Params,
       { p->pChipName = p->deviceIndex == 3 ? "GH100" : "no device"; })

DOUBLE(cuptiProfilerHostInitialize, CUpti_Profiler_Host_Initialize_Params, {
  if (strcmp(p->pChipName, "GH100")) return CUPTI_ERROR_INVALID_PARAMETER;
  p->pHostObject = OBJECT;
})
DOUBLE(cuptiProfilerHostDeinitialize, CUpti_Profiler_Host_Deinitialize_Params, )
DOUBLE(cuptiProfilerHostGetMetricProperties, CUpti_Profiler_Host_GetMetricProperties_Params,
       { p->pDimUnit = strcmp(p->pMetricName, "second.pct") ? "byte" : "percent"; })
DOUBLE(cuptiProfilerHostConfigAddMetrics, CUpti_Profiler_Host_ConfigAddMetrics_Params,
       { if (p->numMetrics != 2 || strcmp(p->ppMetricNames[1], "second.pct")) return 1; })
DOUBLE(cuptiProfilerHostGetConfigImageSize, CUpti_Profiler_Host_GetConfigImageSize_Params,
       { p->configImageSize = 16; })
DOUBLE(cuptiProfilerHostGetConfigImage, CUpti_Profiler_Host_GetConfigImage_Params,
       { memcpy(p->pConfigImage, "configuration..", p->configImageSize); })
DOUBLE(cuptiProfilerHostGetNumOfPasses, CUpti_Profiler_Host_GetNumOfPasses_Params,
       { p->numOfPasses = 2; })
DOUBLE(cuptiProfilerHostEvaluateToGpuValues, CUpti_Profiler_Host_EvaluateToGpuValues_Params, {
  if (p->pHostObject != OBJECT || memcmp(p->pCounterDataImage, "decoded", 7)) return 1;
  for (size_t n = 0; n < p->numMetrics; n++)
    p->pMetricValues[n] = 100.0 * p->rangeIndex + n + 0.5;
})

DOUBLE(cuptiRangeProfilerEnable, CUpti_RangeProfiler_Enable_Params, {
  if (p->ctx != (CUcontext)0x1000) return CUPTI_ERROR_INVALID_CONTEXT;
  p->pRangeProfilerObject = OBJECT;
  launches = pass = 0;
})
DOUBLE(cuptiRangeProfilerDisable, CUpti_RangeProfiler_Disable_Params, )
DOUBLE(cuptiRangeProfilerGetCounterDataSize, CUpti_RangeProfiler_GetCounterDataSize_Params, {
  if (p->maxNumOfRanges != 5 || p->maxNumRangeTreeNodes != 5) return 1;
  p->counterDataSize = 64;
})
DOUBLE(cuptiRangeProfilerCounterDataImageInitialize,
       CUpti_RangeProfiler_CounterDataImage_Initialize_Params,
       { memset(p->pCounterData, 0, p->counterDataSize); })
DOUBLE(cuptiRangeProfilerSetConfig, CUpti_RangeProfiler_SetConfig_Params, {
  if (memcmp(p->pConfig, "configuration..", 15) || p->passIndex || pass) return 1;
  if (p->numNestingLevels != 1 || p->minNestingLevel != 1) return 1;
  if (p->targetNestingLevel != 1 || p->maxRangesPerPass != 5) return 1;
  decoded_into = p->pCounterDataImage;
  kind = p->range;
  if (p->replayMode != (kind == CUPTI_AutoRange ? CUPTI_KernelReplay : CUPTI_UserReplay))
    return CUPTI_ERROR_NOT_SUPPORTED;
})
DOUBLE(cuptiRangeProfilerStart, CUpti_RangeProfiler_Start_Params, { counting = 1; })
DOUBLE(cuptiRangeProfilerStop, CUpti_RangeProfiler_Stop_Params, {
  counting = 0;
  p->passIndex = ++pass;
  p->targetNestingLevel = 1;
  p->isAllPassSubmitted = kind == CUPTI_AutoRange || pass == 2;
})
DOUBLE(cuptiRangeProfilerPushRange, CUpti_RangeProfiler_PushRange_Params,
       { if (strcmp(p->pRangeName, "forward")) return 1; })
DOUBLE(cuptiRangeProfilerPopRange, CUpti_RangeProfiler_PopRange_Params, )
DOUBLE(cuptiRangeProfilerDecodeData, CUpti_RangeProfiler_DecodeData_Params, {
  memcpy(decoded_into, "decoded", 7);
  p->numOfRangeDropped = 0;
})
DOUBLE(cuptiRangeProfilerGetCounterDataInfo, CUpti_RangeProfiler_GetCounterDataInfo_Params,
       { p->numTotalRanges = kind == CUPTI_AutoRange ? launches : 1; })
DOUBLE(cuptiRangeProfilerCounterDataGetRangeInfo,
       CUpti_RangeProfiler_CounterData_GetRangeInfo_Params,
       { p->rangeName = kind == CUPTI_UserRange ? "forward" : p->rangeIndex ? "1" : "0"; })
