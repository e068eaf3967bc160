/* metrics_rows.c - kept mass and normaliser of a row from its log-sum-exps (metrics.h). */
#include "cuda/metrics/metrics.h"

#include <math.h>

double metrics_kept(double lse, double dense_lse)
{
    double kept = lse == -INFINITY ? 0 : exp(lse - dense_lse);
    return kept > 1 ? 1 : kept; /* NaN stays */
}

void metrics_norm(double lse, float norm[2])
{
    double exact = lse * M_LOG2E;
    norm[0] = lse == -INFINITY ? INFINITY : (float)exact;
    norm[1] = lse == -INFINITY ? 0 : (float)exp2((double)norm[0] - exact);
}
