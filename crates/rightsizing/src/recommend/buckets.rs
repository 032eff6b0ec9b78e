//! Bucket layout of a histogram.
//!
//! Upstream: `pkg/recommender/util/histogram_options.go`. A bucket's number and its start are computed the same way
//! to the last bit, because a value at a boundary decides the recommendation.

/// Maximum number of buckets. More are useless, and would make histograms large.
const COUNT_MAX: f64 = 4096.0;

/// Buckets of a histogram: `count` half-open intervals from 0 up; the last one has no end.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    growth: Growth,
    count: u16,
    epsilon: f64,
}

#[derive(Debug, Clone, PartialEq)]
enum Growth {
    /// All buckets are this wide.
    Linear { size: f64 },
    /// Each bucket is `ratio` times as wide as the one before it.
    Exponential { first: f64, ratio: f64 },
}

/// Bucket sizes are invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct BucketsError(&'static str);

impl Buckets {
    /// Creates buckets of equal size up to `max`. A weight below `epsilon` counts as zero.
    pub fn linear(max: f64, size: f64, epsilon: f64) -> Result<Self, BucketsError> {
        if !(max > 0.0 && size > 0.0 && epsilon > 0.0) {
            return Err(BucketsError("maximum, bucket size and epsilon must be positive"));
        }
        Ok(Self { growth: Growth::Linear { size }, count: checked_count((max / size).ceil())?, epsilon })
    }

    /// Creates buckets up to `max`. The first one is `first` wide, each next one `ratio` times as wide as the
    /// previous.
    pub fn exponential(max: f64, first: f64, ratio: f64, epsilon: f64) -> Result<Self, BucketsError> {
        if !(max > 0.0 && first > 0.0 && epsilon > 0.0 && ratio > 1.0) {
            return Err(BucketsError(
                "maximum, first bucket and epsilon must be positive, the ratio above 1",
            ));
        }
        let count = checked_count((max * (ratio - 1.0) / first + 1.0).ln() / ratio.ln())?;
        Ok(Self { growth: Growth::Exponential { first, ratio }, count, epsilon })
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    pub fn last(&self) -> u16 {
        self.count - 1
    }

    /// Returns the weight below which a bucket counts as empty.
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// Returns the bucket of a value: the first for negative values and NaN, the last for values beyond it.
    pub fn find(&self, value: f64) -> u16 {
        let exact = match self.growth {
            Growth::Linear { size } => value / size,
            Growth::Exponential { first, .. } if value < first => 0.0,
            Growth::Exponential { first, ratio } => (value * (ratio - 1.0) / first + 1.0).ln() / ratio.ln(),
        };
        (exact as u16).min(self.last())
    }

    /// Returns the smallest value of a bucket. (By rounding, [`find`](Self::find) may put this value into the
    /// previous bucket; same as upstream.)
    pub fn start(&self, bucket: u16) -> f64 {
        match self.growth {
            Growth::Linear { size } => size * f64::from(bucket),
            Growth::Exponential { .. } if bucket == 0 => 0.0,
            Growth::Exponential { first, ratio } => {
                first * (power(ratio, u32::from(bucket)) - 1.0) / (ratio - 1.0)
            }
        }
    }

    /// Returns the end of a bucket, which percentiles report. For the last bucket it is the bucket's start.
    pub fn end(&self, bucket: u16) -> f64 {
        self.start(bucket.saturating_add(1).min(self.last()))
    }
}

fn checked_count(without_last: f64) -> Result<u16, BucketsError> {
    let count = without_last.ceil() + 1.0;
    if (1.0..=COUNT_MAX).contains(&count) {
        Ok(count as u16)
    } else {
        Err(BucketsError("more than 4096 buckets"))
    }
}

/// Raises `base` to a whole power by squaring, from the lowest bit of the exponent up: the order in which Go's
/// `math.Pow` multiplies. The standard library does not specify the rounding of `powi`, and `powf` rounds
/// differently.
pub fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}
