//! A CA for tests, and a client that presents the given certificate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::http::{Request, StatusCode};
use http::Method;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use jiff::{SignedDuration, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate and its key, both PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

pub struct Ca {
    pub certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub fn new(name: &str) -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key).expect("signed").pem();
        Ca { certificate, issuer: Issuer::new(params, key) }
    }

    /// For `localhost` and 127.0.0.1, until `end`.
    pub fn server(&self, end: Timestamp) -> Pair {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("names");
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, end)
    }

    pub fn client(&self, name: &str, organization: &str, end: Timestamp) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        self.sign(params, ExtendedKeyUsagePurpose::ClientAuth, end)
    }

    fn sign(&self, mut params: CertificateParams, usage: ExtendedKeyUsagePurpose, end: Timestamp) -> Pair {
        params.extended_key_usages = vec![usage];
        params.not_after = SystemTime::from(end).into();
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// Returns the time `seconds` from now.
pub fn in_seconds(seconds: i64) -> Timestamp {
    Timestamp::now() + SignedDuration::from_secs(seconds)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http1,
    Http2,
}

/// Client certificate and trusted CA.
#[derive(Clone)]
pub struct Client {
    tls: Arc<ClientConfig>,
    version: Version,
}

/// A persistent connection.
pub enum Connection {
    Http1(http1::SendRequest<String>),
    Http2(http2::SendRequest<String>),
}

impl Client {
    pub fn new(trusted: &str, shown: Option<&Pair>, version: Version) -> Client {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
            roots.add(certificate.expect("PEM")).expect("a CA");
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.expect("versions").with_root_certificates(roots);
        let mut tls = match shown {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let chain = CertificateDer::pem_slice_iter(pair.certificate.as_bytes());
                let chain = chain.map(|it| it.expect("PEM")).collect();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        let protocol: &[u8] = if version == Version::Http2 { b"h2" } else { b"http/1.1" };
        tls.alpn_protocols = vec![protocol.to_vec()];
        Client { tls: Arc::new(tls), version }
    }

    /// The handshake, as the client sees it: with TLS 1.3 the server may refuse the client's certificate later.
    pub async fn handshake(&self, address: SocketAddr) -> Result<TlsStream<TcpStream>, String> {
        let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(self.tls.clone()).connect(name, stream).await.map_err(|error| error.to_string())
    }

    pub async fn connect(&self, address: SocketAddr) -> Result<Connection, String> {
        let stream = TokioIo::new(self.handshake(address).await?);
        let text = |error: hyper::Error| format!("{error:?}");
        match self.version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(stream).await.map_err(text)?;
                tokio::spawn(connection);
                Ok(Connection::Http1(sender))
            }
            Version::Http2 => {
                let (sender, connection) =
                    http2::handshake(TokioExecutor::new(), stream).await.map_err(text)?;
                tokio::spawn(connection);
                Ok(Connection::Http2(sender))
            }
        }
    }

    /// Sends one request on its own connection.
    pub async fn get(&self, address: SocketAddr, path: &str) -> Result<(StatusCode, String), String> {
        self.connect(address).await?.get(path).await
    }
}

impl Connection {
    pub async fn get(&mut self, path: &str) -> Result<(StatusCode, String), String> {
        self.send(Method::GET, path, None).await
    }

    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        token: Option<&str>,
    ) -> Result<(StatusCode, String), String> {
        let text = |error: hyper::Error| format!("{error:?}");
        let mut request = Request::builder().method(method);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = match self {
            Connection::Http1(sender) => {
                let request = request.uri(path).header("host", "localhost").body(String::new());
                sender.send_request(request.expect("a request")).await.map_err(text)?
            }
            Connection::Http2(sender) => {
                let request = request.uri(format!("https://localhost{path}")).body(String::new());
                sender.send_request(request.expect("a request")).await.map_err(text)?
            }
        };
        let status = answer.status();
        let body = axum::body::Body::new(answer.into_body());
        let body = axum::body::to_bytes(body, 1 << 20).await.map_err(|error| error.to_string())?;
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// Returns whether the server has closed it.
    pub fn is_closed(&self) -> bool {
        match self {
            Connection::Http1(sender) => sender.is_closed(),
            Connection::Http2(sender) => sender.is_closed(),
        }
    }
}
