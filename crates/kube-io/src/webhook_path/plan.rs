//! When tokens are renewed. Pure: the caller passes the time and new tokens.

use std::time::Duration;

use jiff::Timestamp;

/// Poll interval of the Secret and of the webhook configurations.
pub const FOLLOW_EVERY: Duration = Duration::from_secs(10);
/// Age at which a token is replaced.
const RENEW_EVERY: Duration = Duration::from_secs(30 * 86_400);
/// Time within which all replicas have read a token, or written one.
const ALL_READ_WITHIN: Duration = Duration::from_secs(300);
/// Bytes of a token.
const TOKEN_BYTES: usize = 64;

/// The tokens in the Secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// In the path that the API server uses.
    pub current: String,
    /// Accepted already.
    pub next: Option<String>,
    /// Accepted still.
    pub previous: Option<String>,
    pub changed: Option<Timestamp>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("Tokens").field("changed", &self.changed).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Returns all tokens that are accepted.
    pub fn accepted(&self) -> impl Iterator<Item = &str> {
        [Some(&self.current), self.next.as_ref(), self.previous.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }
}

/// Returns the tokens after the step that is due; `None`: none is.
///
/// # Errors
/// Those of `random`, which returns a new token.
pub(super) fn renewed<E>(
    tokens: &Tokens,
    now: Timestamp,
    random: impl Fn() -> Result<String, E>,
) -> Result<Option<Tokens>, E> {
    let is_token =
        tokens.current.len() == TOKEN_BYTES && tokens.current.bytes().all(|b| b.is_ascii_hexdigit());
    // A time in the future would keep a token for ever.
    let changed = tokens.changed.filter(|at| *at <= now + ALL_READ_WITHIN);
    let Some(changed) = changed.filter(|_| is_token) else {
        return Ok(Some(Tokens { current: random()?, changed: Some(now), ..Tokens::default() }));
    };
    let age = now.duration_since(changed).unsigned_abs();
    Ok(match (&tokens.next, &tokens.previous) {
        (Some(next), _) if age >= ALL_READ_WITHIN => Some(Tokens {
            current: next.clone(),
            next: None,
            previous: Some(tokens.current.clone()),
            changed: Some(now),
        }),
        (None, Some(_)) if age >= ALL_READ_WITHIN => Some(Tokens { previous: None, ..tokens.clone() }),
        (None, None) if age >= RENEW_EVERY => {
            Some(Tokens { next: Some(random()?), changed: Some(now), ..tokens.clone() })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn every_replica_accepts_a_token_before_it_is_used_and_for_a_while_after() {
        let made = Cell::new(0u64);
        let random = || {
            made.set(made.get() + 1);
            Ok::<_, ()>(format!("{:064x}", made.get()))
        };
        let start = Timestamp::UNIX_EPOCH;
        let step = Duration::from_secs(60);
        let mut tokens = renewed(&Tokens::default(), start, random).unwrap().expect("the first token");
        let mut of_day = Vec::new();
        // What the API server used at each minute, and what a replica accepts that read the Secret four minutes ago.
        let mut states = vec![tokens.clone()];
        for minute in 1..=(70 * 24 * 60) {
            let now = start + step * minute;
            if let Some(next) = renewed(&tokens, now, random).unwrap() {
                tokens = next;
            }
            states.push(tokens.clone());
            let behind = &states[states.len().saturating_sub(5)];
            assert!(behind.accepted().any(|known| known == tokens.current), "at minute {minute}");
            // An API server that read the configuration four minutes ago.
            assert!(tokens.accepted().any(|known| known == behind.current), "at minute {minute}");
            if minute % (24 * 60) == 0 {
                of_day.push((tokens.current.clone(), tokens.accepted().count()));
            }
        }
        assert_eq!(made.get(), 3, "one at the start and one every thirty days");
        assert!(
            of_day.iter().filter(|(_, accepted)| *accepted > 1).count() <= 2,
            "only shortly more than one"
        );
    }

    #[test]
    fn what_is_no_token_is_replaced() {
        let good =
            Tokens { current: "a".repeat(64), changed: Some(Timestamp::UNIX_EPOCH), ..Tokens::default() };
        let renewed = |tokens: Tokens| {
            renewed(&tokens, Timestamp::UNIX_EPOCH, || Ok::<_, ()>("b".repeat(64)))
                .unwrap()
                .map(|it| it.current)
        };
        assert_eq!(renewed(good.clone()), None);
        for bad in [
            Tokens { current: "a".repeat(63), ..good.clone() },
            Tokens { current: "/".repeat(64), ..good.clone() },
            Tokens { changed: None, ..good.clone() },
            Tokens { changed: Some(Timestamp::MAX), ..good },
        ] {
            assert_eq!(renewed(bad), Some("b".repeat(64)));
        }
    }
}
