//! Self-signed CA and the server certificates that it issues. Pure: the caller passes the time.

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
/// Tolerated skew of clients' clocks.
const SKEW: Duration = Duration::from_secs(3_600);

/// A certificate for a server, and its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Issued {
    /// PEM: the certificate, then the ones that lead to its CA.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// The CAs that clients have to trust, PEM; empty if unknown.
    pub authorities: String,
}

/// Omits the key, so that it never appears in a log.
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
    /// Creates a CA that is valid for ten years from `now`.
    ///
    /// # Errors
    /// When the system's random number generator fails.
    pub fn new(now: Timestamp) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        // A unique name per CA: a client that trusts two of them selects the right one by name.
        params.distinguished_name = named(&format!("berth CA {}", now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = SystemTime::from(now - SKEW).into();
        params.not_after = SystemTime::from(now + AUTHORITY_LIFE).into();
        let certificate = params.self_signed(&key)?.pem();
        Ok(Authority { certificate, issuer: Issuer::new(params, key) })
    }

    /// Restores a CA from its certificate and key, both PEM.
    ///
    /// # Errors
    /// When one of them is invalid, or the key is not that of the certificate.
    pub fn from_pem(certificate: &str, key: &str) -> Result<Authority, rcgen::Error> {
        let key = KeyPair::from_pem(key)?;
        let of_certificate = super::certificates_of(certificate).into_iter().next();
        if of_certificate.is_none_or(|it| it.public_key != key.public_key_raw()) {
            return Err(rcgen::Error::CouldNotParseCertificate);
        }
        let issuer = Issuer::from_ca_cert_pem(certificate, key)?;
        Ok(Authority { certificate: certificate.to_owned(), issuer })
    }

    /// The certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The key, PEM.
    pub fn key(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// Issues a server certificate with a new key, valid for 90 days from `now`, for these DNS names and for localhost.
    ///
    /// # Errors
    /// When a name is invalid, or the system's random number generator fails.
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

/// Returns the localhost names of every certificate, then `names`, without duplicates.
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
