//! Links between services, kept from one window to the next.

use std::sync::Arc;

use super::window::Scored;
use super::{CorrelatedResource, CorrelationHint, CorrelationSettings, Direction, Window, WindowError};

/// Statistics of one window, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CorrelationPass {
    /// Services that were correlated.
    pub services: usize,
    /// Services left out because of the maximum number.
    pub left_out: usize,
    /// Correlations that are defined.
    pub defined: usize,
    /// Correlations that were strong enough.
    pub strong: usize,
    /// Hints in force by pair and resource, before the strongest of each service are selected.
    pub in_force: usize,
    /// Hints that came into force.
    pub entered: usize,
    /// Hints that were removed.
    pub left: usize,
}

/// Pair of services that is, or recently was, correlated in one resource.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    /// Indexes in the list of services, `a` before `b`.
    a: u16,
    b: u16,
    resource: CorrelatedResource,
    direction: Direction,
    /// Absolute value of the correlation, smoothed.
    strength: f32,
    /// Consecutive windows with a strong correlation, until it came into force.
    confirmed: u8,
    /// Consecutive windows that did not confirm it since it came into force.
    missed: u8,
    in_force: bool,
    /// Weight of its hint.
    weight: u8,
}

/// Links of all pairs. Memory: 16 bytes per correlated pair and resource, and the same again while a window is
/// processed; with 500 services at most 15 MB.
#[derive(Debug, Clone)]
pub struct Correlations {
    settings: CorrelationSettings,
    /// Sorted.
    services: Vec<Arc<str>>,
    /// Sorted by pair and resource.
    links: Vec<Link>,
    until_s: Option<f64>,
}

impl Correlations {
    pub fn new(settings: CorrelationSettings) -> Self {
        Correlations { settings, services: Vec::new(), links: Vec::new(), until_s: None }
    }

    /// Continues from hints that were in force, for example in another process.
    pub fn resumed(settings: CorrelationSettings, known: impl IntoIterator<Item = CorrelationHint>) -> Self {
        let mut known: Vec<CorrelationHint> =
            known.into_iter().filter(|hint| hint.service != hint.other).collect();
        for hint in &mut known {
            if hint.service > hint.other {
                std::mem::swap(&mut hint.service, &mut hint.other);
            }
        }
        let mut services: Vec<Arc<str>> =
            known.iter().flat_map(|hint| [hint.service.clone(), hint.other.clone()]).collect();
        services.sort();
        services.dedup();
        services.truncate(settings.services());
        let mut resumed = Correlations { settings, services, links: Vec::new(), until_s: None };
        resumed.links = known.iter().filter_map(|hint| resumed.resumed_link(hint)).collect();
        // Both services of a pair have the hint; if the two differ, keeping apart wins.
        resumed.links.sort_by_key(|link| (link.key(), link.direction, u8::MAX - link.weight));
        resumed.links.dedup_by_key(|link| link.key());
        resumed
    }

    fn resumed_link(&self, hint: &CorrelationHint) -> Option<Link> {
        let place = |name| self.services.binary_search(name).ok().map(|place| place as u16);
        let share = match hint.direction {
            Direction::Apart => 1.0,
            Direction::Together => self.settings.together_share.clamp(0.01, 1.0),
        };
        let link = Link {
            a: place(&hint.service)?,
            b: place(&hint.other)?,
            resource: hint.resource,
            direction: hint.direction,
            strength: (f64::from(hint.weight) / 100.0 / share).min(1.0) as f32,
            confirmed: self.settings.confirmations,
            missed: 0,
            in_force: true,
            weight: 0,
        };
        Some(link.weighed(0))
    }

    /// Adds the next window. A window that begins more than half a step before the last one ended is refused,
    /// because its data would count as confirmation twice.
    pub fn observe(&mut self, window: &Window) -> Result<CorrelationPass, WindowError> {
        if self.until_s.is_some_and(|until_s| window.begin_s() < until_s - window.step_s() / 2.0) {
            return Err(WindowError::Overlaps);
        }
        self.until_s = Some(window.end_s());
        let chosen = window.largest(self.settings.services());
        let mut pass = CorrelationPass {
            services: chosen.len(),
            left_out: window.services().len() - chosen.len(),
            ..CorrelationPass::default()
        };
        let places = self.follow(window, &chosen);
        let scored =
            CorrelatedResource::ALL.map(|resource| Scored::new(window, resource, &places, &self.settings));
        let known = std::mem::take(&mut self.links);
        let mut known = known.iter().peekable();
        for a in 0..self.services.len() {
            for b in a + 1..self.services.len() {
                for (resource, scored) in CorrelatedResource::ALL.into_iter().zip(&scored) {
                    let rho = scored.correlation(a, b);
                    let key = (a as u16, b as u16, resource);
                    let known = known.next_if(|link| link.key() == key);
                    self.links.extend(self.next(key, known, rho, &mut pass));
                }
            }
        }
        Ok(pass)
    }

    /// Merges the list of services with that of the window; services with links are kept. Returns for each its
    /// index in the window.
    fn follow(&mut self, window: &Window, chosen: &[usize]) -> Vec<Option<usize>> {
        let mut used = vec![false; self.services.len()];
        for link in self.links.iter().filter(|link| link.in_force) {
            used[usize::from(link.a)] = true;
            used[usize::from(link.b)] = true;
        }
        let chosen_names = chosen.iter().map(|place| &window.services()[*place]);
        let used_names = self.services.iter().zip(&used).filter(|(_, used)| **used).map(|(name, _)| name);
        let mut all: Vec<Arc<str>> = chosen_names.chain(used_names).cloned().collect();
        all.sort();
        all.dedup();
        let place = |name: &Arc<str>| all.binary_search(name).ok();
        let moved: Vec<Option<usize>> = self.services.iter().map(place).collect();
        self.links.retain_mut(|link| match (moved[usize::from(link.a)], moved[usize::from(link.b)]) {
            (Some(a), Some(b)) => {
                // Both lists are sorted, so the links stay sorted.
                (link.a, link.b) = (a as u16, b as u16);
                true
            }
            _ => false,
        });
        self.services = all;
        let in_window = |name: &Arc<str>| {
            let place = window.services().binary_search(name).ok()?;
            chosen.binary_search(&place).ok().map(|_| place)
        };
        self.services.iter().map(in_window).collect()
    }

    /// Returns the new link of a pair in one resource, with its correlation in the newest window.
    fn next(
        &self,
        key: (u16, u16, CorrelatedResource),
        known: Option<&Link>,
        rho: Option<f32>,
        pass: &mut CorrelationPass,
    ) -> Option<Link> {
        let rho = rho.map(f64::from);
        let strong = rho.filter(|rho| rho.abs() >= self.settings.enter);
        pass.defined += usize::from(rho.is_some());
        pass.strong += usize::from(strong.is_some());
        let next = match known {
            Some(link) if link.in_force => self.kept(link, rho),
            _ => strong.map(|rho| self.candidate(key, known, rho)),
        };
        let (before, after) =
            (known.is_some_and(|link| link.in_force), next.is_some_and(|link| link.in_force));
        pass.in_force += usize::from(after);
        pass.entered += usize::from(after && !before);
        pass.left += usize::from(before && !after);
        next
    }

    /// Returns the link of a correlated pair that is not in force yet.
    fn candidate(
        &self,
        (a, b, resource): (u16, u16, CorrelatedResource),
        known: Option<&Link>,
        rho: f64,
    ) -> Link {
        let direction = if rho > 0.0 { Direction::Apart } else { Direction::Together };
        let before = known.filter(|link| link.direction == direction);
        let confirmed = before.map_or(0, |link| link.confirmed).saturating_add(1);
        let rho = rho.abs() as f32;
        let strength = before.map_or(rho, |link| (link.strength + rho) / 2.0);
        let in_force = confirmed >= self.settings.confirmations;
        Link { a, b, resource, direction, strength, confirmed, missed: 0, in_force, weight: 0 }.weighed(0)
    }

    /// Returns a hint in force after one more window; `None`: it is no longer in force.
    fn kept(&self, link: &Link, rho: Option<f64>) -> Option<Link> {
        let along = rho.map(|rho| if link.direction == Direction::Apart { rho } else { -rho });
        let slack = self.settings.weight_slack;
        match along {
            Some(along) if along >= self.settings.leave => {
                let strength = (link.strength + along as f32) / 2.0;
                Some(Link { strength, missed: 0, ..*link }.weighed(slack))
            }
            // The correlation has the opposite sign now.
            Some(along) if along <= -self.settings.leave => None,
            _ if link.missed >= self.settings.patience() => None,
            _ => Some(Link { missed: link.missed + 1, ..*link }.weighed(slack)),
        }
    }

    /// Returns the heap memory kept from one window to the next.
    pub fn heap_bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>() + self.services.capacity() * size_of::<Arc<str>>()
    }

    /// Returns the hints in force, sorted by service; for each service the strongest ones, apart before together,
    /// then by name.
    ///
    /// Pods of one service also peak together: a service with any hint is also kept apart from itself.
    pub fn hints(&self) -> Vec<CorrelationHint> {
        self.hints_between(|_, _| true)
    }

    /// Returns the same for pairs of services that `may` know of each other.
    pub fn hints_between(&self, may: impl Fn(&str, &str) -> bool) -> Vec<CorrelationHint> {
        let mut of: Vec<Vec<(u8, Direction, u16, CorrelatedResource)>> =
            vec![Vec::new(); self.services.len()];
        let in_force: Vec<&Link> =
            self.links.iter().filter(|link| link.in_force && link.weight > 0).collect();
        let name = |place: u16| &*self.services[usize::from(place)];
        for pair in in_force.chunk_by(|one, other| (one.a, one.b) == (other.a, other.b)) {
            if !pair.first().is_some_and(|link| may(name(link.a), name(link.b))) {
                continue;
            }
            // Resources may disagree: peaks at the same time do the harm.
            let Some(link) = pair.iter().min_by_key(|link| (link.direction, u8::MAX - link.weight)) else {
                continue;
            };
            let weight = self.weight(link);
            of[usize::from(link.a)].push((weight, link.direction, link.b, link.resource));
            of[usize::from(link.b)].push((weight, link.direction, link.a, link.resource));
        }
        let mut hints = Vec::new();
        for (service, mut theirs) in of.into_iter().enumerate() {
            if let Some((.., resource)) = theirs.iter().max() {
                theirs.push((100, Direction::Apart, service as u16, *resource));
            }
            theirs
                .sort_unstable_by_key(|(weight, direction, other, _)| (u8::MAX - weight, *direction, *other));
            theirs.truncate(self.settings.hints_max);
            hints.extend(theirs.into_iter().map(|(weight, direction, other, resource)| CorrelationHint {
                service: self.services[service].clone(),
                other: self.services[usize::from(other)].clone(),
                direction,
                weight,
                resource,
            }));
        }
        hints
    }

    fn weight(&self, link: &Link) -> u8 {
        match link.direction {
            Direction::Apart => link.weight,
            Direction::Together => {
                let share = self.settings.together_share.clamp(0.0, 1.0);
                (f64::from(link.weight) * share).round().max(1.0) as u8
            }
        }
    }
}

impl Link {
    fn key(&self) -> (u16, u16, CorrelatedResource) {
        (self.a, self.b, self.resource)
    }

    /// Sets the weight computed from the other fields, unless it changes by less than `slack`.
    fn weighed(self, slack: u8) -> Link {
        let full = (100.0 * self.strength).round().clamp(1.0, 100.0) as u8;
        let weight = full.checked_shr(self.missed.into()).unwrap_or(0);
        if weight.abs_diff(self.weight) < slack { self } else { Link { weight, ..self } }
    }
}
