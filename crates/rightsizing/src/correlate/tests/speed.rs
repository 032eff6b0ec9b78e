use super::*;

/// Prints the duration of a pass and its memory: `cargo test --profile dist --lib -- --ignored the_time_of_a_pass
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn the_time_of_a_pass_over_500_services() {
    for (points, gaps) in [(20, false), (30, false), (60, false), (30, true)] {
        let services = names(500);
        let mut known = Correlations::new(CorrelationSettings::default());
        let mut dice = Dice(1);
        for number in 0..6 {
            let window = window(&mut dice, number, points, &services, |dice, service, at| {
                let phase = (service % 4) as f64 * std::f64::consts::FRAC_PI_2;
                let wave = (at as f64 / 20.0 * std::f64::consts::TAU + phase).sin();
                if gaps && dice.share() < 0.02 { f64::NAN } else { 100.0 + 30.0 * wave + 8.0 * dice.normal() }
            });
            let began = std::time::Instant::now();
            let pass = known.observe(&window).expect("in order");
            let (passed, began) = (began.elapsed(), std::time::Instant::now());
            let hints = known.hints().len();
            let told = began.elapsed();
            let kib = known.heap_bytes() / 1024;
            println!(
                "{points} points, gaps {gaps}: {passed:?}, hints {told:?}, {hints} of {pass:?}, {kib} KiB kept"
            );
        }
    }
}
