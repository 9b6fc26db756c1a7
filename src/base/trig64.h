/* sin and cos in double precision from + - * fma only: the same bits on every platform. For rotary angles:
 * |x| up to 2^31, absolute error below 1e-15 for |x| < 1e6, growing as x * 2^-70 beyond. */
#ifndef BASE_TRIG64_H
#define BASE_TRIG64_H

void sincos64(double x, double *s, double *c);

#endif
