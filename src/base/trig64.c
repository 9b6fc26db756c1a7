/* Reduction by multiples of pi/2 split in three parts (Cody and Waite), then Taylor polynomials on
 * [-pi/4, pi/4], whose first left-out terms are below 2^-57. */
#include "base/trig64.h"

#include <math.h>
#include <stdint.h>

void sincos64(double x, double *s, double *c)
{
    const double two_over_pi = 0x1.45f306dc9c883p-1, round = 0x1.8p52;
    const double p1 = 0x1.921fb54442d18p0, p2 = 0x1.1a62633145c07p-54, p3 = -0x1.f1976b7ed8fbcp-110;
    double n = (x * two_over_pi + round) - round;
    double r = fma(-n, p1, x);
    r = fma(-n, p2, r);
    r = fma(-n, p3, r);
    double z = r * r;
    double sp = -0x1.ae7f3e733b81fp-41; // -1/15!
    sp = fma(sp, z, 0x1.6124613a86d09p-33);
    sp = fma(sp, z, -0x1.ae64567f544e4p-26);
    sp = fma(sp, z, 0x1.71de3a556c734p-19);
    sp = fma(sp, z, -0x1.a01a01a01a01ap-13);
    sp = fma(sp, z, 0x1.1111111111111p-7);
    sp = fma(sp, z, -0x1.5555555555555p-3);
    sp = fma(sp * z, r, r);
    double cp = 0x1.ae7f3e733b81fp-45; // 1/16!
    cp = fma(cp, z, -0x1.93974a8c07c9dp-37);
    cp = fma(cp, z, 0x1.1eed8eff8d898p-29);
    cp = fma(cp, z, -0x1.27e4fb7789f5cp-22);
    cp = fma(cp, z, 0x1.a01a01a01a01ap-16);
    cp = fma(cp, z, -0x1.6c16c16c16c17p-10);
    cp = fma(cp, z, 0x1.5555555555555p-5);
    cp = fma(cp, z, -0.5);
    cp = fma(cp, z, 1.0);
    switch ((int64_t)n & 3) {
    case 0: *s = sp, *c = cp; break;
    case 1: *s = cp, *c = -sp; break;
    case 2: *s = -sp, *c = -cp; break;
    default: *s = -cp, *c = sp;
    }
}
