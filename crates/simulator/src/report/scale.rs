//! Mapping from values to positions along an axis, and its ticks.

/// Maximum span of a log axis: smaller values are drawn at its low end.
const LOG_SPAN_MAX: f64 = 1e6;
/// Larger and smaller values, which no measurement gives, are drawn as these.
const SIZE_MAX: f64 = 1e15;
const SIZE_MIN: f64 = 1e-12;

/// A closed range of values with linear or logarithmic spacing. Its ends are finite and differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisScale {
    pub log: bool,
    pub low: f64,
    pub high: f64,
}

impl AxisScale {
    /// Creates exactly this range; ends that are not finite or do not differ are corrected.
    pub fn linear(low: f64, high: f64) -> Self {
        let low = if low.is_finite() { low.clamp(-SIZE_MAX, SIZE_MAX) } else { 0.0 };
        let high = if high.is_finite() { high.min(2.0 * SIZE_MAX) } else { low };
        let differ = high - low > SIZE_MIN.max(low.abs() * SIZE_MIN);
        let high = if differ { high } else { low + 1.0_f64.max(low.abs()) };
        Self { log: false, low, high }
    }

    /// Creates a range from zero to the first round step that covers all values.
    pub fn from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let max = values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let all = Self::linear(0.0, if max > 0.0 { max } else { 1.0 });
        let step = all.step(4);
        Self::linear(0.0, (all.high / step - 1e-9).ceil() * step)
    }

    /// Creates a range that covers all positive values, extended to the next 1, 2 or 5 times a power of ten.
    pub fn log(values: impl IntoIterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::MAX, 0.0_f64);
        for value in values.into_iter().filter(|value| value.is_finite() && *value > 0.0) {
            let value = value.clamp(SIZE_MIN, SIZE_MAX);
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            (low, high) = (0.1, 1.0);
        }
        let marks = |value: f64| {
            let decade = value.log10().floor() as i32;
            [1.0, 2.0, 5.0, 10.0].map(|digit| digit * 10_f64.powi(decade))
        };
        low = low.max(high / LOG_SPAN_MAX);
        let down = marks(low).into_iter().rfind(|mark| *mark <= low * (1.0 + 1e-9)).unwrap_or(low);
        let up = marks(high).into_iter().find(|mark| *mark >= high * (1.0 - 1e-9)).unwrap_or(high);
        Self { log: true, low: down, high: if up > down { up } else { down * 10.0 } }
    }

    /// Creates a logarithmic range if small values would otherwise collapse to zero on a linear axis.
    pub fn for_spread(values: &[f64], ratio_max: f64) -> Self {
        let positive = || values.iter().copied().filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = (positive().fold(f64::MAX, f64::min), positive().fold(0.0, f64::max));
        if high > low * ratio_max { Self::log(positive()) } else { Self::from_zero(positive()) }
    }

    /// Returns the position of a value, 0 to 1; values outside are clamped, and NaN is at the low end.
    pub fn fraction(&self, value: f64) -> f64 {
        let at = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) }
    }

    /// Returns about `about` round values inside the range, increasing.
    pub fn ticks(&self, about: usize) -> Vec<f64> {
        if !self.log {
            let step = self.step(about);
            let first = (self.low / step - 1e-9).ceil() as i64;
            let last = (self.high / step + 1e-9).floor() as i64;
            return (first..=last).map(|at| at as f64 * step).collect();
        }
        let decades = (self.high / self.low).log10();
        let digits: &[f64] = if decades > about as f64 / 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let decade = |value: f64| value.log10().floor() as i32;
        let marks = (decade(self.low)..=decade(self.high) + 1)
            .flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
        marks.filter(|mark| (self.low * (1.0 - 1e-9)..=self.high * (1.0 + 1e-9)).contains(mark)).collect()
    }

    /// Returns 1, 2 or 5 times a power of ten, so that about `about` steps fit.
    fn step(&self, about: usize) -> f64 {
        let raw = (self.high - self.low) / about.max(1) as f64;
        let power = 10_f64.powf(raw.log10().floor());
        let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= raw * 0.999).unwrap_or(10.0);
        digit * power
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_starts_at_zero_and_ends_at_a_round_step() {
        let scale = AxisScale::from_zero([3.0, 17.3]);
        assert_eq!((scale.low, scale.high), (0.0, 20.0));
        assert_eq!(scale.ticks(4), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(AxisScale::from_zero([0.03]).high, 0.03);
        assert_eq!(scale.fraction(5.0), 0.25);
    }

    #[test]
    fn a_log_axis_reaches_out_to_round_ends_and_names_powers_of_ten() {
        let scale = AxisScale::log([0.013, 4.0, 1_700.0]);
        assert!((scale.low - 0.01).abs() < 1e-12 && scale.high == 2_000.0);
        let ticks = scale.ticks(6);
        let expected = [0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0];
        assert!(ticks.len() == 6 && ticks.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-9));
        assert_eq!(AxisScale::log([1.0, 10.0]).ticks(6), [1.0, 2.0, 5.0, 10.0]);
    }

    #[test]
    fn zero_and_what_is_outside_lies_on_an_end_of_a_log_axis() {
        let scale = AxisScale::log([1.0, 100.0]);
        assert_eq!([-3.0, 0.0, 1.0, 10.0, 1e9].map(|value| scale.fraction(value)), [0.0, 0.0, 0.0, 0.5, 1.0]);
        assert_eq!(scale.fraction(f64::NAN), 0.0);
    }

    #[test]
    fn scales_of_nothing_of_zeros_and_of_no_numbers_still_have_two_ends() {
        for values in
            [vec![], vec![0.0, 0.0], vec![f64::NAN, f64::INFINITY, -1.0], vec![5e-324], vec![f64::MAX]]
        {
            for scale in [
                AxisScale::from_zero(values.clone()),
                AxisScale::log(values.clone()),
                AxisScale::for_spread(&values, 30.0),
                AxisScale::linear(values.first().copied().unwrap_or(f64::NAN), 0.0),
            ] {
                assert!(scale.low.is_finite() && scale.high.is_finite(), "{values:?} {scale:?}");
                let ends = scale.fraction(scale.low) == 0.0 && scale.ticks(5).len() < 20;
                assert!(ends && scale.fraction(f64::INFINITY) == 1.0, "{values:?} {scale:?}");
            }
        }
    }

    #[test]
    fn an_axis_is_logarithmic_only_when_its_values_are_far_apart() {
        assert!(!AxisScale::for_spread(&[1.0, 0.0, 29.0], 30.0).log);
        assert!(AxisScale::for_spread(&[1.0, 0.0, 31.0], 30.0).log);
    }

    #[test]
    fn constant_values_are_not_at_the_edge_of_a_degenerate_range() {
        let scale = AxisScale::log([10.0, 10.0]);
        assert!(scale.low < scale.high && scale.ticks(4).len() >= 2);
    }
}
