/* The depth controller: argmax of expected tokens per second over measured costs and acceptances.
 *
 *   E(k) = 1 + a_1 + a_1 a_2 + ... + a_1..a_k   tokens of a round that drafts k
 *   rate(k) = E(k) / (t_verify(k + 1) + t_draft(k))
 *
 * Two things keep it from being slower than plain decoding. Trials, plans that the estimates don't
 * favour, are paid from a budget of 1 % of the time so far. And a running account of what speculation
 * loses against plain decoding (a CUSUM test: it forgets gains beyond a few steps) replaces the slow
 * averages of acceptance by the recent ones as soon as it is overdrawn, so a prior or a past that no
 * longer holds costs a few steps at most. */
#include "infer/depth.h"

#include <string.h>

static const double PRIOR_HEAD = 0.5, PRIOR_COPY = 0.7; // before anything is known
static const double PRIOR_WEIGHT = 4;
static const double FALL = 0.96;         // an unseen position is taken to accept this share of the one before
static const double WINDOW = 64;         // tokens of evidence that an average of acceptance holds
static const double FADE = 1.0 / 100;
static const double RECENT = 1.0 / 6;    // step of the short average
static const double TIME_STEP = 0.15;    // step of the averages of time, once there are samples
static const double TIME_AGE = 100;      // rounds after which a new sample counts for half
static const double SPIKE = 1.5;         // times the average
static const double HYSTERESIS = 1.03;   // between drafters, and from plain decoding to one
static const double HOLD = 1.01;         // between depths of one drafter
static const double COPY_REST = 0.3;     // the copy drafter rests below this acceptance
static const double BUDGET = 0.01;       // share of decode time for trials
static const double DEBT_MAX = 1.5, CREDIT_MAX = 3; // in plain steps
enum { TRIAL_TOKENS = 64, TRIAL_GAP = 8, PLAIN_EVERY = 256, START_DEPTH = 2, RAMP_START = 8, RAMP_MIN = 4 };

static const struct depth_plan PLAIN = {-1, 0};

void depth_init(struct depth_ctl *c, int n, const int *max_depth, int fixed)
{
    memset(c, 0, sizeof *c);
    c->n = n < DRAFTERS_MAX ? n : DRAFTERS_MAX;
    c->fixed = fixed;
    c->last = PLAIN;
    for (int i = 0; i < c->n; i++) {
        struct depth_drafter *d = &c->d[i];
        d->is_copy = max_depth[i] > DEPTH_MAX;
        d->max_depth = max_depth[i] < COPY_MAX ? max_depth[i] : COPY_MAX;
        d->prior = d->is_copy ? PRIOR_COPY : PRIOR_HEAD;
        d->prior_weight = PRIOR_WEIGHT;
        d->ramp = d->is_copy ? RAMP_START : DEPTH_MAX;
    }
}

/* ---- times -------------------------------------------------------------------------------------------- */

/* A single sample far above the average (another process, a page fault) hardly counts; several in a row are a
 * change. An early average far above a new sample was such a spike itself. */
static void time_add(struct depth_time *t, double s, int64_t round)
{
    if (!(s > 0))
        s = 1e-9; // too short for the clock, but measured
    double step = 1.0 / (t->n + 1);
    double age = (double)(round - t->round); // the longer ago, the less the average says (the context grows)
    step = step > TIME_STEP ? step : TIME_STEP;
    step = step > age / (age + TIME_AGE) ? step : age / (age + TIME_AGE);
    if (t->n && s > SPIKE * t->s && ++t->n_high < 4) {
        s = SPIKE * t->s;
        step /= 8;
    } else if (s <= SPIKE * t->s) {
        t->n_high = 0;
    }
    if (t->n < 4 && s < t->s / SPIKE)
        step = 1;
    t->s += step * (s - t->s);
    t->n += t->n < 1000;
    t->round = round;
}

void depth_cost(struct depth_ctl *c, int rows, double verify_s, int drafter, int depth, double draft_s)
{
    if (rows >= 1 && rows <= COPY_MAX + 1)
        time_add(&c->t_verify[rows], verify_s, c->rounds);
    if (drafter >= 0 && drafter < c->n && depth >= 1 && depth <= COPY_MAX)
        time_add(&c->t_draft[drafter][depth], draft_s, c->rounds);
}

/* Linear between measured points, beyond the last by the slope of the last two, never falling.
 * with_origin: no rows take no time. Returns 0 if that can't be told. */
static double time_at(const struct depth_time *t, int n, int k, bool with_origin)
{
    int lo = with_origin ? 0 : -1, lo2 = -1, hi = -1;
    if (t[k].n)
        return t[k].s;
    for (int i = 1; i < n; i++) {
        if (!t[i].n)
            continue;
        if (i < k) {
            lo2 = lo;
            lo = i;
        } else {
            hi = i;
            break;
        }
    }
    double at_lo = lo > 0 ? t[lo].s : 0;
    double slope;
    if (hi > 0 && lo >= 0)
        slope = (t[hi].s - at_lo) / (hi - lo);
    else if (lo > 0 && lo2 >= 0)
        slope = (at_lo - (lo2 > 0 ? t[lo2].s : 0)) / (lo - lo2);
    else
        return 0;
    return at_lo + (slope > 0 ? slope : 0) * (k - lo);
}

/* The first sample of a size is held against what its neighbours suggest: it may be a spike. */
static void time_first(const struct depth_time *t, int n, int k, bool with_origin, double *s)
{
    double guess = t[k].n ? 0 : time_at(t, n, k, with_origin);
    if (guess > 0 && *s > SPIKE * guess)
        *s = SPIKE * guess;
}

/* 0 if unknown. */
static double plan_time(const struct depth_ctl *c, struct depth_plan p)
{
    double verify = time_at(c->t_verify, COPY_MAX + 2, p.depth + 1, false), draft = 0;
    if (p.drafter >= 0) {
        draft = time_at(c->t_draft[p.drafter], COPY_MAX + 1, p.depth, true);
        if (!(draft > 0) && !c->d[p.drafter].is_copy)
            return 0; // copying costs next to nothing, a head doesn't
    }
    return verify > 0 ? verify + draft : 0;
}

/* ---- acceptance --------------------------------------------------------------------------------------- */

static int slot_of(const struct depth_drafter *d, int i) { return d->is_copy && i > 1 ? 1 : i; }

/* Evidence blended with what the position before suggests; the latter fades out as the window fills. */
static double blend(const struct depth_drafter *d, int slot, double prior, double weight)
{
    double w = d->weight[slot];
    weight *= 1 - w / WINDOW;
    return w + weight > 0 ? (w * d->accept[slot] + weight * prior) / (w + weight) : prior;
}

static double plan_tokens(const struct depth_ctl *c, struct depth_plan p)
{
    double tokens = 1, reach = 1, a = 0;
    if (p.drafter < 0)
        return 1;
    const struct depth_drafter *d = &c->d[p.drafter];
    for (int i = 0; i < p.depth; i++) {
        if (i == 0)
            a = blend(d, 0, d->prior, d->prior_weight);
        else if (slot_of(d, i) == i)
            a = blend(d, i, d->is_copy ? a : a * FALL, PRIOR_WEIGHT);
        reach *= a;
        tokens += reach;
    }
    return tokens;
}

static double copy_acceptance(const struct depth_drafter *d)
{
    return blend(d, 0, d->prior, d->prior_weight);
}

void depth_prior(struct depth_ctl *c, int drafter, int agreed, int n)
{
    if (drafter < 0 || drafter >= c->n || n <= 0)
        return;
    struct depth_drafter *d = &c->d[drafter];
    double dflt = d->is_copy ? PRIOR_COPY : PRIOR_HEAD;
    d->prior = (agreed + PRIOR_WEIGHT * dflt) / (n + PRIOR_WEIGHT);
    // the prompt isn't the answer: however long it is, a few rounds outweigh it
    d->prior_weight = PRIOR_WEIGHT + (n < 64 ? n : 64) / 16.0;
}

double depth_expect(const struct depth_ctl *c, struct depth_plan p)
{
    if (p.depth < 0 || p.depth > COPY_MAX || p.drafter >= c->n)
        return 0;
    if (p.drafter < 0 || p.depth == 0)
        p = PLAIN;
    double t = plan_time(c, p);
    return t > 0 ? plan_tokens(c, p) / t : 0;
}

/* ---- choice ------------------------------------------------------------------------------------------- */

static int cap_of(const struct depth_ctl *c, int i, const int *available, int limit)
{
    const struct depth_drafter *d = &c->d[i];
    int cap = d->max_depth < d->ramp ? d->max_depth : d->ramp;
    cap = cap < available[i] ? cap : available[i];
    cap = cap < limit ? cap : limit;
    // one position beyond what was ever reached: a prior alone never starts a long draft
    for (int k = START_DEPTH; k < cap && !d->is_copy; k++)
        if (!(d->weight[k - 1] > 0))
            cap = k;
    return cap > 0 ? cap : 0;
}

/* The drafter's best depth up to cap, 1 if nothing is known of its costs; *rate gets its expectation or 0. */
static int best_depth(const struct depth_ctl *c, int i, int cap, double *rate)
{
    int best = 1, hold = c->d[i].hold;
    *rate = 0;
    for (int k = 1; k <= cap; k++) {
        double r = depth_expect(c, (struct depth_plan){i, k});
        if (r > *rate) {
            *rate = r;
            best = k;
        }
    }
    if (hold >= 1 && hold <= cap && hold != best) {
        double r = depth_expect(c, (struct depth_plan){i, hold});
        if (*rate < r * HOLD) {
            *rate = r;
            best = hold;
        }
    }
    return best;
}

/* What the estimates favour. A speculative plan is entered only if it beats plain decoding by the
 * hysteresis and left as soon as it doesn't beat it. */
static struct depth_plan favourite(const struct depth_ctl *c, const int *available, int limit, double *rate)
{
    double plain = depth_expect(c, PLAIN), best_score = 0;
    struct depth_plan best = PLAIN;
    *rate = plain;
    if (!(plain > 0))
        return PLAIN; // nothing to compare with: this round measures it
    for (int i = 0; i < c->n; i++) {
        int cap = cap_of(c, i, available, limit);
        double r;
        if (!cap || (c->d[i].is_copy && copy_acceptance(&c->d[i]) < COPY_REST))
            continue;
        int k = best_depth(c, i, cap, &r);
        double score = c->last.drafter == i ? r * HYSTERESIS : r;
        if (r > 0 && score > best_score) {
            best_score = score;
            best = (struct depth_plan){i, k};
            *rate = r;
        }
    }
    if (best.drafter >= 0 && *rate > plain * (c->last.drafter >= 0 ? 1 : HYSTERESIS))
        return best;
    *rate = plain;
    return PLAIN;
}

/* Expected loss of a round of p against the rate, in seconds. An unknown plan is taken to be dear:
 * every row costs a plain step and every draft three quarters of one. */
static double trial_loss(const struct depth_ctl *c, struct depth_plan p, double rate)
{
    double t = plan_time(c, p);
    if (!(t > 0))
        t = c->t_verify[1].s * (1 + 1.75 * p.depth);
    double loss = t - plan_tokens(c, p) / rate;
    return loss > 0 ? loss : 0;
}

/* A plan worth a look that the budget can pay, or the favourite itself. */
static struct depth_plan trial(struct depth_ctl *c, struct depth_plan fav, const int *available, int limit,
                               double rate)
{
    double budget = BUDGET * c->time - c->regret;
    if (c->tokens < TRIAL_TOKENS || c->tokens < c->next_trial || !(rate > 0) || budget <= 0)
        return fav;
    if (fav.drafter >= 0 && c->rounds - c->plain_round >= PLAIN_EVERY && trial_loss(c, PLAIN, rate) <= budget)
        return PLAIN; // its cost grows with the context as well
    for (int j = 0; j < c->n; j++) {
        int i = (c->turn + j) % c->n, cap = cap_of(c, i, available, limit);
        struct depth_plan p = {i, 0};
        double r;
        if (!cap)
            continue;
        p.depth = i == fav.drafter ? fav.depth + 1 : best_depth(c, i, cap, &r);
        if (p.depth > cap || trial_loss(c, p, rate) > budget)
            continue;
        if (i == fav.drafter && c->d[i].weight[slot_of(&c->d[i], fav.depth)] >= WINDOW && !c->d[i].is_copy)
            continue; // the next depth is known well enough
        c->turn = i + 1;
        return p;
    }
    return fav;
}

struct depth_plan depth_choose(struct depth_ctl *c, const int *available, int limit)
{
    double rate;
    c->is_trial = false;
    if (c->fixed >= 0) {
        for (int i = 0; c->fixed > 0 && i < c->n; i++) {
            int k = c->fixed < limit ? c->fixed : limit;
            k = k < available[i] ? k : available[i];
            k = k < c->d[i].max_depth ? k : c->d[i].max_depth;
            if (k > 0)
                return (struct depth_plan){i, k};
        }
        return PLAIN;
    }
    struct depth_plan fav = favourite(c, available, limit, &rate), p = trial(c, fav, available, limit, rate);
    if (p.drafter != fav.drafter || p.depth != fav.depth) {
        c->is_trial = true;
        c->trial_rate = rate;
    }
    return p;
}

/* ---- report ------------------------------------------------------------------------------------------- */

static void observe(struct depth_drafter *d, int proposed, int accepted)
{
    for (int i = 0; i < proposed && i <= accepted; i++) {
        int s = slot_of(d, i);
        double hit = i < accepted, step = 1 / (d->weight[s] + 1);
        d->accept[s] += (step > 1 / WINDOW ? step : 1 / WINDOW) * (hit - d->accept[s]);
        d->recent[s] += (step > RECENT ? step : RECENT) * (hit - d->recent[s]);
        if (d->weight[s] < WINDOW)
            d->weight[s] += 1;
    }
    for (int i = proposed > 0 ? proposed : COPY_MAX; i < COPY_MAX; i++)
        d->weight[i] *= 1 - FADE; // positions not tried any more: what is known of them ages
    if (!d->is_copy || proposed <= 0)
        return;
    if (accepted == proposed && proposed >= d->ramp)
        d->ramp = 2 * d->ramp < COPY_MAX ? 2 * d->ramp : COPY_MAX;
    else if (2 * accepted < proposed)
        d->ramp = d->ramp / 2 > RAMP_MIN ? d->ramp / 2 : RAMP_MIN;
}

/* Overdrawn: what the averages promised isn't so (any more). */
static void believe_recent(struct depth_drafter *d)
{
    double few = 1 / RECENT;
    for (int i = 0; i < COPY_MAX; i++) {
        d->accept[i] = d->recent[i];
        if (d->weight[i] > few)
            d->weight[i] = few;
    }
    d->prior_weight = 0;
}

/* The account of a drafter's round against plain decoding (a step of it takes the given seconds). */
static void settle(struct depth_ctl *c, int drafter, double loss, double step)
{
    if (!(step > 0))
        return;
    c->debt += loss;
    if (c->debt < -CREDIT_MAX * step)
        c->debt = -CREDIT_MAX * step;
    if (c->debt > DEBT_MAX * step) {
        c->debt = 0;
        believe_recent(&c->d[drafter]);
    }
}

void depth_report(struct depth_ctl *c, struct depth_plan p, int proposed, int accepted, int emitted,
                  double draft_s, double verify_s)
{
    if (proposed < 0 || proposed > COPY_MAX || p.drafter >= c->n)
        return;
    c->rounds++;
    c->tokens += emitted;
    c->time += draft_s + verify_s;
    time_first(c->t_verify, COPY_MAX + 2, proposed + 1, false, &verify_s);
    time_add(&c->t_verify[proposed + 1], verify_s, c->rounds);
    if (p.drafter >= 0 && proposed > 0) {
        time_first(c->t_draft[p.drafter], COPY_MAX + 1, proposed, true, &draft_s);
        time_add(&c->t_draft[p.drafter][proposed], draft_s, c->rounds);
    }
    if (p.drafter < 0 || proposed == 0)
        c->plain_round = c->rounds;
    // Accounts use the averages, now with this round in them: a spike is nobody's fault.
    double took = plan_time(c, (struct depth_plan){p.drafter, proposed}), step = c->t_verify[1].s;
    if (c->is_trial) {
        c->regret += took - emitted / c->trial_rate;
        c->regret = c->regret > 0 ? c->regret : 0;
        c->next_trial = c->tokens + TRIAL_GAP;
    } else {
        c->last = p;
    }
    if (p.drafter >= 0) {
        observe(&c->d[p.drafter], proposed, accepted);
        if (!c->is_trial) {
            c->d[p.drafter].hold = p.depth;
            settle(c, p.drafter, took - emitted * step, step);
        }
    }
    c->is_trial = false;
}
