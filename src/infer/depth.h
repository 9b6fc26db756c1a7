/* How many tokens to draft in the next round, and by which drafter. Pure bookkeeping on measured costs
 * and acceptances: no clock, no model. "Never slower": trying a plan that is expected to lose is paid
 * from a regret budget of 1 % of the decode time so far, and never before 64 tokens. Depth 0 (plain
 * decoding) is a choice. */
#ifndef INFER_DEPTH_H
#define INFER_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

enum { DEPTH_MAX = 8, COPY_MAX = 24, DRAFTERS_MAX = 4 };

struct depth_plan {
    int drafter; // index, -1: plain decoding
    int depth;   // tokens to propose, 0 with drafter -1
};

/* One drafter's running estimates. One that may propose more than DEPTH_MAX tokens is a copy drafter:
 * its positions after the first share one estimate, its length is ramped, and it rests below an
 * acceptance of 0.3. */
struct depth_drafter {
    int max_depth;           // most tokens it may propose in a round
    bool is_copy;
    double prior, prior_weight; // acceptance at the first position before any round, and its weight in tokens
    double accept[COPY_MAX]; // moving average of acceptance at position i given that all before were accepted
    double recent[COPY_MAX]; // the same over the last few rounds
    double weight[COPY_MAX]; // evidence behind accept (tokens)
    int ramp;                // copy drafter: most tokens it proposes now
    int hold;                // depth of its last round, 0: none
};

/* A moving average of measured seconds. */
struct depth_time {
    double s; // 0: not measured
    int n;    // samples so far, capped
    int n_high; // samples in a row far above the average
    int64_t round; // of the last sample
};

struct depth_ctl {
    int n;
    struct depth_drafter d[DRAFTERS_MAX];
    struct depth_time t_verify[COPY_MAX + 2]; // a round's verification with k rows, index k >= 1
    struct depth_time t_draft[DRAFTERS_MAX][COPY_MAX + 1]; // drafting k tokens
    double time, regret;          // decode seconds so far; seconds lost on trials so far
    double debt;                  // seconds lost against plain decoding by rounds that should have won
    int64_t tokens, rounds;
    int64_t plain_round;          // round in which plain decoding was last measured
    int64_t next_trial;           // token count from which the next trial may start
    int turn;                     // rotates trials among drafters
    struct depth_plan last;       // last plan that was not a trial
    bool is_trial;                // the plan just chosen is one
    double trial_rate;            // tokens per second it is measured against
    int fixed; // -1: auto, else this depth always, by the first drafter that has tokens
};

void depth_init(struct depth_ctl *c, int n, const int *max_depth, int fixed);
/* Costs known beforehand (measured at load or by tune): seconds for k verify rows, and for k drafts. */
void depth_cost(struct depth_ctl *c, int rows, double verify_s, int drafter, int depth, double draft_s);
/* Acceptance prior of a drafter from teacher forcing on the prompt: agreed of n tokens. */
void depth_prior(struct depth_ctl *c, int drafter, int agreed, int n);
/* Chooses the next round. available[i]: how many tokens drafter i can propose now (a copy drafter without a
 * match: 0); limit: most tokens the round may emit minus one. */
struct depth_plan depth_choose(struct depth_ctl *c, const int *available, int limit);
/* Reports what the round did: proposed and accepted drafts, tokens emitted, measured seconds. */
void depth_report(struct depth_ctl *c, struct depth_plan p, int proposed, int accepted, int emitted,
                  double draft_s, double verify_s);
/* Expected tokens per second of a plan by the current estimates, 0 if nothing is known; for forecasts. */
double depth_expect(const struct depth_ctl *c, struct depth_plan p);

#endif
