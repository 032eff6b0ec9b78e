//! The serving certificate and the client CAs: read from files, or issued here.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::validity::{Trouble, Validity};
use berth_config::Serving;
use berth_kube_io::certificates::{Authority, Certificate, Issued, certificates_of};

/// Certificate and CAs in use, and their source.
pub(super) struct Material {
    config: Serving,
    /// The contents read last, usable or not: no content is tried, or reported, twice.
    seen: Result<Contents, String>,
    shown: Issued,
    validity: Validity,
    /// The client CAs in use, PEM.
    clients: Option<String>,
    /// Signs the serving certificate, if berth issues it for this process alone.
    authority: Option<Authority>,
}

/// Contents of the files.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Option<Issued>,
    clients: Option<String>,
}

/// Result of a check of the files.
pub(super) enum Seen {
    Same,
    New(Arc<ServerConfig>),
    Unusable(anyhow::Error),
}

impl Material {
    pub fn new(config: &Serving, now: Timestamp) -> Result<(Material, Arc<ServerConfig>)> {
        let contents = Contents::read(config)?;
        let (shown, authority) = match &contents.certificate {
            Some(certificate) => (certificate.clone(), None),
            None => {
                let authority = Authority::new(now).context("cannot create a CA")?;
                let issued = authority.issue(&config.names, now).context(
                    "cannot issue a certificate: set serving.names to DNS names, or set serving.certFile",
                )?;
                (issued, Some(authority))
            }
        };
        let (tls, validity) = usable(&shown, contents.clients.as_deref())?;
        let (config, clients) = (config.clone(), contents.clients.clone());
        Ok((Material { config, seen: Ok(contents), shown, validity, clients, authority }, tls))
    }

    pub fn shown(&self) -> &Issued {
        &self.shown
    }

    /// Returns the expiry of the serving certificate.
    pub fn expiry(&self) -> Timestamp {
        self.validity.end()
    }

    /// Returns the trouble with the serving certificate that is due to be logged, and its remedy.
    pub fn trouble(&mut self, now: Timestamp) -> Option<(Trouble, &'static str)> {
        let remedy = if self.config.cert_file.is_some() {
            "replace serving.certFile and serving.keyFile; they are read again within ten seconds"
        } else if self.config.secret.is_empty() {
            "it is renewed automatically: check the clock of this machine"
        } else {
            "it is renewed in the Secret of serving.secret: see the warnings in this log for why the renewal fails"
        };
        self.validity.due_warning(now).map(|trouble| (trouble, remedy))
    }

    pub fn install(&mut self, issued: &Issued) -> Result<Arc<ServerConfig>> {
        let tls = self.take(issued.clone(), self.clients.clone())?;
        self.authority = None;
        Ok(tls)
    }

    /// Rereads the files, and renews a certificate issued here.
    pub fn look(&mut self, now: Timestamp) -> Seen {
        let found = Contents::read(&self.config).map_err(|error| format!("{error:#}"));
        let changed = found != self.seen;
        self.seen = found;
        let contents = match &self.seen {
            Ok(contents) if changed => contents.clone(),
            Err(error) if changed => return Seen::Unusable(anyhow::anyhow!("{error}")),
            _ => return self.renew(now),
        };
        let shown = contents.certificate.unwrap_or_else(|| self.shown.clone());
        match self.take(shown, contents.clients) {
            Ok(tls) => Seen::New(tls),
            Err(error) => Seen::Unusable(error),
        }
    }

    fn renew(&mut self, now: Timestamp) -> Seen {
        let Some(authority) = &self.authority else { return Seen::Same };
        let shown = certificates_of(&self.shown.certificate);
        if shown.first().is_some_and(|it| !it.is_due(now)) {
            return Seen::Same;
        }
        let issued = authority.issue(&self.config.names, now).context("cannot renew the certificate");
        match issued.and_then(|issued| self.take(issued, self.clients.clone())) {
            Ok(tls) => Seen::New(tls),
            Err(error) => Seen::Unusable(error),
        }
    }

    /// Takes both or, if one of them is unusable, neither.
    fn take(&mut self, shown: Issued, clients: Option<String>) -> Result<Arc<ServerConfig>> {
        let (tls, validity) = usable(&shown, clients.as_deref())?;
        (self.shown, self.clients, self.validity) = (shown, clients, validity);
        Ok(tls)
    }
}

impl Contents {
    fn read(config: &Serving) -> Result<Contents> {
        let read = |setting: &str, file: &Path| {
            fs::read_to_string(file).with_context(|| format!("cannot read {setting} {}", file.display()))
        };
        let certificate = match (&config.cert_file, &config.key_file) {
            (Some(certificate), Some(key)) => Some(Issued {
                certificate: read("serving.certFile", certificate)?,
                key: read("serving.keyFile", key)?,
                authorities: String::new(),
            }),
            _ => None,
        };
        let clients = config.client_ca_file.as_deref();
        let clients = clients.map(|file| read("serving.clientCaFile", file)).transpose()?;
        Ok(Contents { certificate, clients })
    }
}

/// Builds the rustls configuration from a certificate and the client CAs, and returns the validity of the certificate.
fn usable(shown: &Issued, clients: Option<&str>) -> Result<(Arc<ServerConfig>, Validity)> {
    let chain = CertificateDer::pem_slice_iter(shown.certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .context("serving.certFile is not PEM")?;
    let leaf = chain.first().context("serving.certFile has no certificate")?;
    let leaf = Certificate::from_der(leaf)
        .context("serving.certFile has a PEM section that is not an X.509 certificate")?;
    // The parser's error is dropped: it could put parts of a key into the log.
    let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes())
        .map_err(|_| anyhow::anyhow!("serving.keyFile has no private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(clients)?), provider);
            // Prometheus and the API server mostly have no certificate: each route decides what a request may do.
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build()?)
        }
    };
    let mut tls = builder.with_single_cert(chain, key).context(
        "serving.certFile and serving.keyFile do not belong together, or use an unsupported key type",
    )?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would not verify the client's certificate again, which may have expired.
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    tls.send_tls13_tickets = 0;
    Ok((Arc::new(tls), Validity::of(&leaf)))
}

fn roots(clients: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(clients.as_bytes()) {
        let certificate = certificate.context("serving.clientCaFile is not PEM")?;
        roots.add(certificate).context("serving.clientCaFile has a certificate that cannot be a CA")?;
    }
    ensure!(!roots.is_empty(), "serving.clientCaFile has no certificate");
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn files(folder: &Path) -> Serving {
        Serving {
            cert_file: Some(folder.join("tls.crt")),
            key_file: Some(folder.join("tls.key")),
            client_ca_file: Some(folder.join("ca.crt")),
            ..Serving::default()
        }
    }

    fn write(folder: &Path, issued: &Issued, clients: &str) {
        fs::write(folder.join("tls.crt"), &issued.certificate).unwrap();
        fs::write(folder.join("tls.key"), &issued.key).unwrap();
        fs::write(folder.join("ca.crt"), clients).unwrap();
    }

    #[test]
    fn a_certificate_made_here_is_renewed_when_a_third_of_its_life_is_left() {
        let (mut material, _) = Material::new(&Serving::default(), now()).unwrap();
        assert_eq!(material.expiry(), now() + 90 * DAY);
        assert!(matches!(material.look(now() + 59 * DAY), Seen::Same));
        let later = now() + 61 * DAY;
        assert!(matches!(material.look(later), Seen::New(_)));
        assert_eq!(material.expiry(), later + 90 * DAY);
        assert!(matches!(material.look(later), Seen::Same));
    }

    #[test]
    fn an_installed_certificate_is_left_to_who_installed_it() {
        let (mut material, _) = Material::new(&Serving::default(), now()).unwrap();
        let issued = Authority::new(now()).unwrap().issue(&[], now() - 80 * DAY).unwrap();
        material.install(&issued).unwrap();
        assert_eq!(material.expiry(), now() + 10 * DAY);
        assert!(matches!(material.look(now()), Seen::Same));
    }

    #[test]
    fn files_that_cannot_be_used_are_told_once_and_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(now()).unwrap();
        let (one, other) =
            (authority.issue(&[], now()).unwrap(), authority.issue(&[], now() + 30 * DAY).unwrap());
        write(folder.path(), &one, authority.certificate());
        let (mut material, _) = Material::new(&files(folder.path()), now()).unwrap();
        assert!(matches!(material.look(now()), Seen::Same));

        let half = Issued { key: one.key.clone(), ..other.clone() };
        let no_key = Issued { key: String::new(), ..one.clone() };
        let bad = [
            (&half, authority.certificate(), "do not belong together"),
            (&no_key, authority.certificate(), "serving.keyFile has no private key"),
            (&one, "", "serving.clientCaFile has no certificate"),
        ];
        for (issued, clients, expected) in bad {
            write(folder.path(), issued, clients);
            let Seen::Unusable(error) = material.look(now()) else { panic!("{expected}") };
            assert!(format!("{error:#}").contains(expected), "{error:#}");
            assert!(matches!(material.look(now()), Seen::Same));
            assert_eq!(material.expiry(), now() + 90 * DAY);
        }
        fs::remove_file(folder.path().join("tls.crt")).unwrap();
        assert!(matches!(material.look(now()), Seen::Unusable(_)));

        write(folder.path(), &other, authority.certificate());
        assert!(matches!(material.look(now()), Seen::New(_)));
        assert_eq!(material.expiry(), now() + 120 * DAY);
    }

    #[test]
    fn a_certificate_that_has_ended_is_served_and_told_with_what_helps() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(now()).unwrap();
        write(folder.path(), &authority.issue(&[], now() - 91 * DAY).unwrap(), authority.certificate());
        let (mut material, _) = Material::new(&files(folder.path()), now()).unwrap();
        let (trouble, remedy) = material.trouble(now()).unwrap();
        assert!(trouble == Trouble::Ended && remedy.contains("serving.certFile"));
        assert_eq!(material.trouble(now() + 10 * SECOND), None);
        write(folder.path(), &authority.issue(&[], now()).unwrap(), authority.certificate());
        assert!(matches!(material.look(now() + 20 * SECOND), Seen::New(_)));
        assert_eq!(material.trouble(now() + 20 * SECOND), None);
        assert_eq!(material.trouble(now() + 90 * DAY).unwrap().0, Trouble::Ended);
    }

    #[test]
    fn a_start_with_files_that_cannot_be_used_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let error = |config: &Serving| format!("{:#}", Material::new(config, now()).err().expect("refused"));
        assert!(error(&files(folder.path())).contains("cannot read serving.certFile"));
        let authority = Authority::new(now()).unwrap();
        let issued = authority.issue(&[], now()).unwrap();
        write(folder.path(), &Issued { certificate: "hello".to_owned(), ..issued }, authority.certificate());
        assert!(error(&files(folder.path())).contains("serving.certFile has no certificate"));
        let names = Serving { names: vec!["bücher".to_owned()], ..Serving::default() };
        assert!(error(&names).contains("serving.names"));
    }
}
