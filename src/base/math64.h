/* exp and log in double precision from + - * and integer operations only: the same bits on every platform,
 * which no C library promises. Within 1 unit in the last place. Used from logits to decision. */
#ifndef BASE_MATH64_H
#define BASE_MATH64_H

/* 0 below -708 (no subnormal results, so flush modes can't matter), +infinity above log(DBL_MAX). */
double exp64(double x);
void exp64_row(double *x, int n); // in place

/* -infinity for 0, NaN below. */
double log64(double x);

#endif
