//! Usage of all services in one time window on a grid, and the correlation of two services.

use std::sync::Arc;

use super::{CorrelatedResource, CorrelationSettings};

/// Maximum number of points of a window.
pub const POINTS_MAX: usize = 128;

/// Number of lanes in which points are summed, so that compilers can vectorise the loop.
const LANES: usize = 8;

/// Invalid parameters of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("a window must have 3 to {POINTS_MAX} points, not {0}")]
    Points(usize),
    #[error("the step of a window must be a positive number of seconds")]
    Step,
    #[error("a window must not begin before the last one ended")]
    Overlaps,
}

/// Usage of services in one window. A point is the mean of all samples around its time over all pods: the usage of
/// one pod of the service, however many there are. A point without samples is missing.
#[derive(Debug, Clone)]
pub struct Window {
    from_s: f64,
    step_s: f64,
    points: usize,
    /// Sorted and unique.
    services: Vec<Arc<str>>,
    /// By resource, then service, then point.
    sums: Vec<f64>,
    counts: Vec<u32>,
}

impl Window {
    /// Creates an empty window of these services, under names chosen by the caller. Its points are at `from_s`, in
    /// seconds since 1970, and at each `step_s` after it.
    pub fn new(
        from_s: f64,
        step_s: f64,
        points: usize,
        services: impl IntoIterator<Item = Arc<str>>,
    ) -> Result<Window, WindowError> {
        if !(3..=POINTS_MAX).contains(&points) {
            return Err(WindowError::Points(points));
        }
        if !(from_s.is_finite() && step_s.is_finite() && step_s > 0.0) {
            return Err(WindowError::Step);
        }
        let mut services: Vec<_> = services.into_iter().collect();
        services.sort();
        services.dedup();
        let cells = CorrelatedResource::ALL.len() * services.len() * points;
        Ok(Window { from_s, step_s, points, services, sums: vec![0.0; cells], counts: vec![0; cells] })
    }

    /// Adds a usage of a pod of the service (cores, bytes, or bytes per second). Returns `false` if the service or
    /// the time is not in the window, or the value is not a valid usage.
    pub fn add(&mut self, service: &str, resource: CorrelatedResource, at_s: f64, value: f64) -> bool {
        let point = ((at_s - self.from_s) / self.step_s).round();
        let Ok(service) = self.services.binary_search_by(|known| (**known).cmp(service)) else {
            return false;
        };
        if !(point >= 0.0 && point < self.points as f64 && value.is_finite() && value >= 0.0) {
            return false;
        }
        let cell = self.row(resource, service) + point as usize;
        self.sums[cell] += value;
        self.counts[cell] = self.counts[cell].saturating_add(1);
        true
    }

    pub fn services(&self) -> &[Arc<str>] {
        &self.services
    }

    pub(super) fn begin_s(&self) -> f64 {
        self.from_s
    }

    /// Returns the end of the time that its last point stands for.
    pub(super) fn end_s(&self) -> f64 {
        self.from_s + self.step_s * self.points as f64
    }

    pub(super) fn step_s(&self) -> f64 {
        self.step_s
    }

    fn row(&self, resource: CorrelatedResource, service: usize) -> usize {
        (resource as usize * self.services.len() + service) * self.points
    }

    /// Returns the points of a series, `None` where they are missing.
    fn series(&self, resource: CorrelatedResource, service: usize) -> impl Iterator<Item = Option<f64>> + '_ {
        let row = self.row(resource, service);
        let mean = move |cell: usize| (self.sums[cell], self.counts[cell]);
        (row..row + self.points)
            .map(mean)
            .map(|(sum, count)| Some(sum / f64::from(count)).filter(|mean| count > 0 && mean.is_finite()))
    }

    /// Returns the indexes of at most `most` services: those with the highest CPU usage, sorted by name.
    pub(super) fn largest(&self, most: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..self.services.len()).collect();
        if all.len() > most {
            let used = |service: usize| self.series(CorrelatedResource::Cpu, service).flatten().sum::<f64>();
            let used: Vec<f64> = all.iter().map(|service| used(*service)).collect();
            all.sort_by(|a, b| used[*b].total_cmp(&used[*a]).then(a.cmp(b)));
            all.truncate(most);
            all.sort_unstable();
        }
        all
    }
}

/// Series of one resource, each normalised to mean 0 and length 1 over its points, so that the correlation of two
/// series with the same points is their scalar product.
pub(super) struct Scored {
    stride: usize,
    points_min: u32,
    lag: usize,
    /// By service; 0 where a point is missing, and after the last one.
    values: Vec<f32>,
    /// 1 where `values` has a point.
    present: Vec<f32>,
    /// The same as bits; 0: the series is flat, or has too few points.
    masks: Vec<u128>,
}

impl Scored {
    /// Normalises the series of these services; `None`: the service is not in the window.
    pub fn new(
        window: &Window,
        resource: CorrelatedResource,
        services: &[Option<usize>],
        settings: &CorrelationSettings,
    ) -> Scored {
        let stride = window.points.next_multiple_of(LANES);
        let points_min = settings.points();
        let mut scored = Scored {
            stride,
            points_min,
            lag: settings.lag_points.min(window.points / 2),
            values: vec![0.0; stride * services.len()],
            present: vec![0.0; stride * services.len()],
            masks: vec![0; services.len()],
        };
        for (at, service) in services.iter().enumerate() {
            let Some(service) = service else { continue };
            let series: Vec<_> = window.series(resource, *service).collect();
            let Some((mean, length)) = spread(&series, points_min, settings.variation_min) else { continue };
            for (point, value) in series.iter().enumerate() {
                if let Some(value) = value {
                    scored.values[at * stride + point] = ((value - mean) / length) as f32;
                    scored.present[at * stride + point] = 1.0;
                    scored.masks[at] |= 1 << point;
                }
            }
        }
        scored
    }

    /// Returns Pearson's correlation of two services over their common points; `None`: one of them is flat there,
    /// or there are too few points.
    pub fn correlation(&self, a: usize, b: usize) -> Option<f32> {
        let (a_mask, b_mask) = (self.masks[a], self.masks[b]);
        if a_mask == 0 || b_mask == 0 {
            return None;
        }
        let unshifted = match a_mask == b_mask {
            true => Some(dot(self.row(&self.values, a), self.row(&self.values, b))),
            false => self.pairwise(a, b, 0),
        };
        let lags = 1..=self.lag;
        let shifted = lags.flat_map(|lag| [self.pairwise(a, b, lag), self.pairwise(b, a, lag)]);
        let strongest = shifted.fold(unshifted, |best, other| match (best, other) {
            (Some(best), Some(other)) if other.abs() > best.abs() => Some(other),
            (None, other) => other,
            (best, _) => best,
        });
        strongest.map(|rho| rho.clamp(-1.0, 1.0))
    }

    fn row<'a>(&self, of: &'a [f32], service: usize) -> &'a [f32] {
        &of[service * self.stride..(service + 1) * self.stride]
    }

    /// Computes the correlation over the common points when `late` is moved back by `lag` points.
    fn pairwise(&self, early: usize, late: usize, lag: usize) -> Option<f32> {
        let common = (self.masks[early] & (self.masks[late] >> lag)).count_ones();
        if common < self.points_min {
            return None;
        }
        let upto = self.stride - lag;
        let of = |rows, service| &self.row(rows, service)[..upto];
        let from = |rows, service| &self.row(rows, service)[lag..];
        let sums = Moments::of(
            (of(&self.values, early), of(&self.present, early)),
            (from(&self.values, late), from(&self.present, late)),
        );
        sums.correlation(common as f32)
    }
}

/// Returns the mean, and the length without the mean; `None` for a series without correlation.
fn spread(series: &[Option<f64>], points_min: u32, variation_min: f64) -> Option<(f64, f64)> {
    let count = series.iter().flatten().count();
    if count < points_min as usize {
        return None;
    }
    let mean = series.iter().flatten().sum::<f64>() / count as f64;
    let square = series.iter().flatten().map(|value| (value - mean).powi(2)).sum::<f64>();
    let deviation = (square / count as f64).sqrt();
    let flat = deviation <= variation_min.max(1e-6) * mean.abs();
    (square.is_finite() && square > 0.0 && !flat).then(|| (mean, square.sqrt()))
}

/// Returns the scalar product of two slices of the same length, a multiple of [`LANES`].
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (a, b) in a.chunks_exact(LANES).zip(b.chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += a[lane] * b[lane];
        }
    }
    lanes.iter().sum()
}

/// Sums over the common points of two series.
#[derive(Default)]
struct Moments {
    a: f32,
    b: f32,
    aa: f32,
    bb: f32,
    ab: f32,
}

impl Moments {
    /// Computes the sums. Each argument is a series, 0 where a point is missing, and the mask of its points.
    fn of((a, in_a): (&[f32], &[f32]), (b, in_b): (&[f32], &[f32])) -> Moments {
        let mut sums = Moments::default();
        for (((a, in_a), b), in_b) in a.iter().zip(in_a).zip(b).zip(in_b) {
            let (a, b) = (a * in_b, b * in_a);
            sums.a += a;
            sums.b += b;
            sums.aa += a * a;
            sums.bb += b * b;
            sums.ab += a * b;
        }
        sums
    }

    fn correlation(&self, count: f32) -> Option<f32> {
        /// Relative to a series of length 1: the rounding remainder of a flat one.
        const FLAT: f32 = 1e-4;
        let (aa, bb) = (self.aa - self.a * self.a / count, self.bb - self.b * self.b / count);
        let ab = self.ab - self.a * self.b / count;
        (aa > FLAT && bb > FLAT).then(|| ab / (aa * bb).sqrt())
    }
}
