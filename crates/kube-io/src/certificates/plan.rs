//! Renewal plan of the CA and the certificate in the Secret. Pure: the caller passes the time.
//!
//! A new CA is first only added to `ca.crt`, beside the old one; it signs a day later, when clients have read that. So a server
//! never presents a certificate that a client with yesterday's `ca.crt` rejects.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use super::issue::all_names;
use super::{Authority, Issued, certificates_of};

const DAY: Duration = Duration::from_secs(86_400);
/// Remaining validity below which a CA is replaced.
const AUTHORITY_LEFT_MIN: Duration = DAY.saturating_mul(365);
/// Time within which clients are expected to reload `ca.crt`.
const CLIENTS_READ_WITHIN: Duration = DAY;
/// Maximum number of previous CAs kept in `ca.crt`: normally one, more only after manual edits.
const PREDECESSORS_MAX: usize = 2;
const END: &str = "-----END CERTIFICATE-----";

/// Content of the Secret, PEM; missing fields are empty.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Kept {
    /// Its CAs are the signing one, then its predecessors.
    pub issued: Issued,
    pub authority_key: String,
}

/// The renewals that are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Plan {
    Keep,
    /// A new CA; the certificate stays.
    Authority,
    /// A certificate for these names, signed by the existing CA.
    Certificate(Vec<String>),
    Both,
}

/// Returns the renewals that are due.
pub(super) fn plan(kept: &Kept, names: &[String], now: Timestamp) -> Plan {
    let authority = current(kept).filter(|it| it.left(now) >= AUTHORITY_LEFT_MIN);
    let certificate = certificates_of(&kept.issued.certificate).into_iter().next();
    let certificate = certificate.filter(|it| is_accepted(kept, &all_names(&[]), it.left(now), now));
    match (authority, certificate) {
        (None, Some(_)) => Plan::Authority,
        (None, None) => Plan::Both,
        (Some(_), None) => Plan::Certificate(names.to_vec()),
        (Some(_), Some(it)) if !is_accepted(kept, names, it.left(now), now) => {
            // Keep the old names too: during a rollout, replicas with other names share the certificate.
            Plan::Certificate([names, &it.names].concat())
        }
        (Some(authority), Some(it)) => {
            let is_known = now >= authority.not_before + CLIENTS_READ_WITHIN;
            if it.is_due(now) && is_known { Plan::Certificate(names.to_vec()) } else { Plan::Keep }
        }
    }
}

/// Carries out the plan. `names` are used where the plan has no names.
///
/// # Errors
/// As [`Authority::issue`].
pub(super) fn renewed(
    kept: &Kept,
    plan: &Plan,
    names: &[String],
    now: Timestamp,
) -> Result<Kept, rcgen::Error> {
    let (renews_authority, names) = match plan {
        Plan::Keep => return Ok(kept.clone()),
        Plan::Authority => (true, None),
        Plan::Certificate(names) => (false, Some(&names[..])),
        Plan::Both => (true, Some(names)),
    };
    let authority = match renews_authority {
        true => Authority::new(now)?,
        false => Authority::from_pem(
            blocks(&kept.issued.authorities).next().unwrap_or_default(),
            &kept.authority_key,
        )?,
    };
    let mut authorities = authority.certificate().trim_end().to_owned() + "\n";
    let is_valid = |block: &&str| certificates_of(block).iter().any(|it| it.left(now) > Duration::ZERO);
    let others = blocks(&kept.issued.authorities).skip(usize::from(!renews_authority));
    for block in others.filter(is_valid).take(PREDECESSORS_MAX) {
        authorities.push_str(block);
        authorities.push('\n');
    }
    let issued = match names {
        Some(names) => authority.issue(names, now)?,
        None => kept.issued.clone(),
    };
    Ok(Kept { issued: Issued { authorities, ..issued }, authority_key: authority.key() })
}

/// Splits a PEM text into its certificates, unchanged.
fn blocks(pem: &str) -> impl Iterator<Item = &str> {
    pem.split_inclusive(END).map(str::trim).filter(|block| block.ends_with(END))
}

/// Returns the signing CA, if its key is present and matches.
fn current(kept: &Kept) -> Option<super::Certificate> {
    let block = blocks(&kept.issued.authorities).next()?;
    Authority::from_pem(block, &kept.authority_key).ok()?;
    certificates_of(block).into_iter().next()
}

/// Whether a client that trusts `authorities` accepts the certificate under all these names.
fn is_accepted(kept: &Kept, names: &[String], left: Duration, now: Timestamp) -> bool {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let chain: Vec<_> =
        CertificateDer::pem_slice_iter(kept.issued.certificate.as_bytes()).filter_map(Result::ok).collect();
    let Ok(key) = PrivateKeyDer::from_pem_slice(kept.issued.key.as_bytes()) else { return false };
    if left.is_zero() || CertifiedKey::from_der(chain.clone(), key, &provider).is_err() {
        return false;
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        CertificateDer::pem_slice_iter(kept.issued.authorities.as_bytes()).filter_map(Result::ok),
    );
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let (Ok(verifier), Some((leaf, chain))) = (verifier, chain.split_first()) else { return false };
    let seconds = u64::try_from(now.as_second()).unwrap_or(0);
    let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    // Wildcard patterns are not server names, so they cannot be verified.
    let mut names = names.iter().filter_map(|name| ServerName::try_from(name.as_str()).ok());
    names.all(|name| verifier.verify_server_cert(leaf, chain, &name, &[], now).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Kept = Kept {
        issued: Issued { certificate: String::new(), key: String::new(), authorities: String::new() },
        authority_key: String::new(),
    };

    fn start() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn day(number: u32) -> Timestamp {
        start() + DAY * number
    }

    fn names() -> Vec<String> {
        vec!["berth.berth-system.svc".to_owned()]
    }

    /// Plans and carries out until nothing is due, as every round does. Returns the plans.
    fn settle(kept: &mut Kept, names: &[String], now: Timestamp) -> Vec<Plan> {
        let mut plans = Vec::new();
        loop {
            assert!(plans.len() < 3, "it never ends: {plans:?}");
            let plan = plan(kept, names, now);
            if plan == Plan::Keep {
                return plans;
            }
            *kept = renewed(kept, &plan, names, now).unwrap();
            plans.push(plan);
        }
    }

    fn fresh() -> Kept {
        let mut kept = NOTHING;
        assert_eq!(settle(&mut kept, &names(), start()), [Plan::Both]);
        kept
    }

    #[test]
    fn nothing_is_made_anew_before_its_time() {
        let mut kept = fresh();
        for now in [start(), day(1), day(59)] {
            assert_eq!(settle(&mut kept, &names(), now), []);
        }
    }

    #[test]
    fn a_certificate_is_renewed_by_the_same_authority_when_a_third_of_its_life_is_left() {
        let mut kept = fresh();
        let before = kept.clone();
        assert_eq!(settle(&mut kept, &names(), day(61)), [Plan::Certificate(names())]);
        assert_eq!(kept.issued.authorities, before.issued.authorities);
        assert_ne!(kept.issued.key, before.issued.key);
        assert_eq!(certificates_of(&kept.issued.certificate)[0].not_after, day(61) + DAY * 90);
        // Also after all replicas were down for a long time.
        assert_eq!(settle(&mut kept, &names(), day(400)), [Plan::Certificate(names())]);
    }

    #[test]
    fn what_is_damaged_is_replaced_and_nothing_else() {
        let (good, other) = (fresh(), fresh());
        let with = |change: fn(&mut Kept, Kept)| {
            let mut kept = good.clone();
            change(&mut kept, other.clone());
            let plans = settle(&mut kept, &names(), day(2));
            (plans, blocks(&kept.issued.authorities).count())
        };
        let certificate = || (vec![Plan::Certificate(names())], 1);
        assert_eq!(with(|it, _| it.issued.certificate.clear()), certificate());
        assert_eq!(with(|it, _| it.issued.key.clear()), certificate());
        assert_eq!(with(|it, _| it.issued.key = "hello".into()), certificate());
        assert_eq!(with(|it, other| it.issued.key = other.issued.key), certificate());
        assert_eq!(
            with(|it, other| (it.issued.certificate, it.issued.key) =
                (other.issued.certificate, other.issued.key)),
            certificate()
        );
        // The certificate is still accepted by the CA whose key is lost.
        assert_eq!(with(|it, _| it.authority_key.clear()), (vec![Plan::Authority], 2));
        assert_eq!(with(|it, other| it.authority_key = other.authority_key), (vec![Plan::Authority], 2));
        assert_eq!(with(|it, _| it.issued.authorities.clear()), (vec![Plan::Both], 1));
        assert_eq!(with(|it, _| it.issued.authorities = "hello".into()), (vec![Plan::Both], 1));
    }

    #[test]
    fn replicas_with_different_names_agree_on_a_certificate_with_all_of_them() {
        let mut kept = fresh();
        let other = vec!["other.berth-system.svc".to_owned()];
        assert_eq!(settle(&mut kept, &other, start()).len(), 1);
        assert_eq!(settle(&mut kept, &names(), start()), []);
        assert_eq!(settle(&mut kept, &other, start()), []);
        // The next renewal removes names that are no longer configured.
        settle(&mut kept, &names(), day(61));
        assert!(!certificates_of(&kept.issued.certificate)[0].names.contains(&other[0]));
        assert_eq!(
            settle(&mut kept, &["*.example.com".to_owned()], day(61)),
            [],
            "a pattern cannot be tried"
        );
    }

    #[test]
    fn a_client_of_yesterday_accepts_the_certificate_of_today_all_through_the_life_of_an_authority() {
        let mut kept = fresh();
        let mut yesterday = kept.clone();
        let (mut authorities, mut most) = (0, 0);
        for number in 1..3_750 {
            let plans = settle(&mut kept, &names(), day(number));
            authorities += plans.iter().filter(|plan| **plan == Plan::Authority).count();
            assert!(!plans.contains(&Plan::Both));
            let mut seen = kept.clone();
            seen.issued.authorities = yesterday.issued.authorities;
            let left = certificates_of(&kept.issued.certificate)[0].left(day(number));
            assert!(is_accepted(&seen, &names(), left, day(number)), "day {number}");
            most = most.max(blocks(&kept.issued.authorities).count());
            yesterday = kept.clone();
        }
        assert_eq!((authorities, most), (1, 2));
        assert_eq!(blocks(&kept.issued.authorities).count(), 1, "what has ended is not trusted any more");
    }
}
