//! A CA of our own, and what it signs. Knows no clock and no API server.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

const DAY: Duration = Duration::from_secs(86_400);
pub(super) const CERTIFICATE_LIFE: Duration = DAY.saturating_mul(90);
pub(super) const AUTHORITY_LIFE: Duration = DAY.saturating_mul(3_652);
/// Clocks of clients may be this much behind ours.
const SKEW: Duration = Duration::from_secs(3_600);

/// A certificate for a server, and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// PEM: the certificate, then the ones that lead to its CA.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// The CAs by which clients know it, PEM; empty when that is not known.
    pub authorities: String,
}

/// The key never gets into a log.
impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// A CA with its key.
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, valid for ten years from `now`.
    ///
    /// # Errors
    /// When the system gives no randomness.
    pub fn new(now: Timestamp) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // Each has a name of its own: a client that knows two of them finds the right one.
        params.distinguished_name = named(&format!("berth CA {}", now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = SystemTime::from(now - SKEW).into();
        params.not_after = SystemTime::from(now + AUTHORITY_LIFE).into();
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    /// The one whose certificate and key, both PEM, were kept.
    ///
    /// # Errors
    /// When one of them cannot be read, or they do not belong together.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::from_pem(key)?;
        let of_certificate = super::certificates_of(certificate).into_iter().next();
        if of_certificate.is_none_or(|it| it.public_key != key.public_key_raw()) {
            return Err(rcgen::Error::CouldNotParseCertificate);
        }
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        Ok(Authority { certificate: certificate.to_owned(), issuer })
    }

    /// Its certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Its key, PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// A certificate with a new key for a server: 90 days from `now`, for these DNS names, and for clients on the same machine.
    ///
    /// # Errors
    /// When one of the names is none, or the system gives no randomness.
    pub fn issue(&self, names: &[String], now: Timestamp) -> Result<Issued, rcgen::Error> {
        let mut params = CertificateParams::new(all_names(names))?;
        params.distinguished_name = named("berth");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = SystemTime::from(now - SKEW).into();
        params.not_after = SystemTime::from(now + CERTIFICATE_LIFE).into();
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem(), authorities: self.certificate.clone() })
    }
}

/// `names`, and what every certificate of ours is for, each once.
pub(super) fn all_names(names: &[String]) -> Vec<String> {
    let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    for name in names {
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    all
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::certificates_of;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn a_kept_authority_issues_as_the_new_one_did() {
        let authority = Authority::new(now()).unwrap();
        let kept = Authority::from_pem(authority.certificate(), &authority.key()).unwrap();
        let issued = kept.issue(&["berth.example".to_owned()], now()).unwrap();
        let [certificate] = &certificates_of(&issued.certificate)[..] else { panic!("one certificate") };
        assert_eq!(certificate.names, ["localhost", "127.0.0.1", "::1", "berth.example"]);
        assert_eq!(certificate.not_after, now() + CERTIFICATE_LIFE);
        assert_eq!(certificates_of(kept.certificate())[0].not_after, now() + AUTHORITY_LIFE);
    }

    #[test]
    fn a_key_of_another_authority_is_refused() {
        let (one, other) = (Authority::new(now()).unwrap(), Authority::new(now()).unwrap());
        assert!(Authority::from_pem(one.certificate(), &other.key()).is_err());
        assert!(Authority::from_pem("", &other.key()).is_err());
        assert!(Authority::from_pem(one.certificate(), "").is_err());
    }

    #[test]
    fn a_key_is_not_in_what_a_log_would_say() {
        let issued = Authority::new(now()).unwrap().issue(&[], now()).unwrap();
        assert!(issued.key.contains("PRIVATE KEY") && !format!("{issued:?}").contains("PRIVATE KEY"));
    }
}
