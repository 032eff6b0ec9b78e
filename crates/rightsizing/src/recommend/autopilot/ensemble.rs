//! Ensemble recommender (section 3.2.2): simple models, each with its own half-life and safety margin. The model
//! with the lowest recent cost is followed.
//!
//! A model's limit is the end of the bucket that minimises the cost of the usage above and below it. Only non-empty
//! buckets and the current limit need to be considered: any other bucket has as much above it as the next lower
//! non-empty one, and more below. Where the paper's margin is an amount, here it is a share, rounded up to the end
//! of a bucket. The usage above and below a limit is a share of all remembered usage, not a count, so that weights
//! mean the same for one pod and for a thousand, on the first day and later.

use std::sync::Arc;

use super::aggregator::{INTERVAL_NS, Interval};
use super::decayed::{Decayed, beside};
use super::settings::{EnsembleSettings, left};
use crate::recommend::buckets::Buckets;

/// Ensemble recommender; see the module.
#[derive(Debug, Clone)]
pub struct Ensemble {
    settings: EnsembleSettings,
    buckets: Arc<Buckets>,
    latest: Option<i64>,
    /// One per half-life.
    histograms: Vec<Decayed>,
    /// One per half-life and margin.
    models: Vec<Model>,
    /// The followed model, and the bucket of its limit.
    followed: Option<(usize, u16)>,
}

#[derive(Debug, Clone)]
struct Model {
    histogram: usize,
    margin: f64,
    /// Bucket without and with the margin; `None` before the first interval.
    buckets: Option<(u16, u16)>,
    cost: f64,
}

/// Maximum number of half-lives, and of margins. More of either do not improve the ensemble.
const PARTS_MAX: usize = 16;

impl Ensemble {
    pub fn new(settings: EnsembleSettings, buckets: &Arc<Buckets>) -> Self {
        let histograms = settings.half_lives.len().min(PARTS_MAX);
        let model = |histogram, margin: &f64| Model { histogram, margin: *margin, buckets: None, cost: 0.0 };
        let margins = &settings.margins[..settings.margins.len().min(PARTS_MAX)];
        let models =
            (0..histograms).flat_map(|histogram| margins.iter().map(move |margin| model(histogram, margin)));
        Ensemble {
            models: models.collect(),
            histograms: vec![Decayed::default(); histograms],
            settings,
            buckets: buckets.clone(),
            latest: None,
            followed: None,
        }
    }

    /// Adds the next interval. An interval that is not later than the last is ignored. Time without samples has no
    /// effect: it adds no weight and causes no decay.
    pub fn take(&mut self, interval: &Interval) {
        if self.latest.is_some_and(|latest| interval.number <= latest) {
            return;
        }
        self.latest = Some(interval.number);
        for (histogram, half_life) in self.histograms.iter_mut().zip(&self.settings.half_lives) {
            let old = left(*half_life, INTERVAL_NS);
            histogram.scale(old);
            histogram.add(&interval.shares, 1.0 - old);
        }
        let kept = left(self.settings.cost_half_life, INTERVAL_NS);
        for model in &mut self.models {
            let weights = self.histograms[model.histogram].weights();
            let base = cheapest(weights, model.buckets.map(|(base, _)| base), &self.settings);
            let limit = with_margin(&self.buckets, base, model.margin);
            let changed = model.buckets.is_some_and(|(_, before)| before != limit);
            let cost = cost(beside(&interval.shares, limit), changed, &self.settings);
            model.cost = (1.0 - kept) * cost + kept * model.cost;
            model.buckets = Some((base, limit));
        }
        self.follow();
    }

    /// Returns the limit in cores or bytes; `None` before the first interval, or without a model.
    pub fn limit(&self) -> Option<f64> {
        self.followed.map(|(_, bucket)| self.buckets.end(bucket))
    }

    pub fn heap_bytes(&self) -> usize {
        let histograms: usize = self.histograms.iter().map(Decayed::heap_bytes).sum();
        histograms + self.models.capacity() * size_of::<Model>()
    }

    /// Chooses the model to follow; the first one on a tie.
    fn follow(&mut self) {
        let mut best: Option<(f64, usize, u16)> = None;
        for (at, model) in self.models.iter().enumerate() {
            let Some((_, limit)) = model.buckets else { continue };
            let other_model = self.followed.is_some_and(|(followed, _)| followed != at);
            let other_limit = self.followed.is_some_and(|(_, before)| before != limit);
            let cost = model.cost
                + f64::from(u8::from(other_model)) * self.settings.model_change
                + f64::from(u8::from(other_limit)) * self.settings.limit_change;
            if best.is_none_or(|(least, ..)| cost < least) {
                best = Some((cost, at, limit));
            }
        }
        self.followed = best.map(|(_, at, limit)| (at, limit));
    }
}

/// Returns the cost of a limit with these shares of all weight above and below it.
fn cost((above, below): (f64, f64), changed: bool, settings: &EnsembleSettings) -> f64 {
    let change = if changed { settings.limit_change } else { 0.0 };
    settings.overrun * above + settings.underrun * below + change
}

/// Returns the bucket whose end is the cheapest limit; the lowest one on a tie.
fn cheapest(weights: &[(u16, f64)], before: Option<u16>, settings: &EnsembleSettings) -> u16 {
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let stays = before.map(|bucket| (cost(beside(weights, bucket), false, settings), bucket));
    let (mut best, mut below) = (stays.unwrap_or((f64::INFINITY, 0)), 0.0);
    for (bucket, weight) in weights {
        let (share_above, share_below) = ((total - below - weight) / total, below / total);
        let cost = cost((share_above.max(0.0), share_below), before.is_some_and(|b| b != *bucket), settings);
        if cost < best.0 {
            best = (cost, *bucket);
        }
        below += weight;
    }
    best.1
}

/// Returns the first bucket that ends at or above the end of `bucket` plus the margin.
fn with_margin(buckets: &Buckets, bucket: u16, margin: f64) -> u16 {
    let wanted = buckets.end(bucket) * (1.0 + margin.max(0.0));
    (bucket..buckets.last()).find(|bucket| buckets.end(*bucket) >= wanted).unwrap_or(buckets.last())
}
