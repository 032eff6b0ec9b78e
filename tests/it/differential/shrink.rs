//! Minimizer of scenarios that show a difference.

use serde_json::Value;

use super::compare::{Difference, Seen, first_difference};
use super::oracle::Oracle;
use super::scenario::{Scenario, Step, print};
use super::simplify::simplify;

/// Removes everything possible while there is still a difference of the same kind. Takes some seconds.
pub fn shrink(mut scenario: Scenario, found: &Difference, oracle: &mut Oracle) -> Scenario {
    let mut differs = |smaller: &Scenario| match first_difference(smaller, oracle, &mut Seen::new()) {
        Ok(Some(difference)) => difference.kind() == found.kind(),
        Ok(None) | Err(_) => false,
    };
    scenario.truncate(found.step + 1);
    loop {
        let before = print(&scenario).len();
        leave_out_steps(&mut scenario, &mut differs);
        for at in 0..scenario.len() {
            leave_out_parts(&mut scenario, at, &mut differs);
        }
        if print(&scenario).len() == before {
            return scenario;
        }
    }
}

/// Tries to remove each step except the first, which resets.
fn leave_out_steps(scenario: &mut Scenario, differs: &mut impl FnMut(&Scenario) -> bool) {
    for at in (1..scenario.len()).rev() {
        let mut smaller = scenario.clone();
        smaller.remove(at);
        if differs(&smaller) {
            *scenario = smaller;
        }
    }
}

fn leave_out_parts(scenario: &mut Scenario, at: usize, differs: &mut impl FnMut(&Scenario) -> bool) {
    let mut step = serde_json::to_value(&scenario[at]).expect("a step is JSON");
    let mut differs = |step: &Value| {
        let Ok(smaller) = serde_json::from_value::<Step>(step.clone()) else { return false };
        let before = std::mem::replace(&mut scenario[at], smaller);
        let differs = differs(scenario);
        if !differs {
            scenario[at] = before;
        }
        differs
    };
    simplify(&mut step, "", &mut differs);
}
