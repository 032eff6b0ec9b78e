//! Synthetic usage from a seed.

use std::sync::Arc;

use crate::correlate::{CorrelatedResource, Window};

/// splitmix64.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Roughly normal: mean 0, deviation 1.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

/// Window number `number` of these services, 10 s per point; `usage` gives all three resources of a service (by
/// index) at a point (counted from the first window).
pub fn window(
    dice: &mut Dice,
    number: usize,
    points: usize,
    services: &[Arc<str>],
    mut usage: impl FnMut(&mut Dice, usize, usize) -> f64,
) -> Window {
    let first = number * points;
    let from_s = first as f64 * 10.0;
    let mut window = Window::new(from_s, 10.0, points, services.iter().cloned()).expect("a window");
    for (place, service) in services.iter().enumerate() {
        for resource in CorrelatedResource::ALL {
            for at in 0..points {
                let value = usage(dice, place, first + at).max(0.0);
                window.add(service, resource, from_s + 10.0 * at as f64, value);
            }
        }
    }
    window
}
