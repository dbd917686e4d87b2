//! Whose certificate is believed.
//!
//! | server             | believed                                                                                      |
//! |--------------------|-----------------------------------------------------------------------------------------------|
//! | named, `--ca-cert` | what those authorities signed for its name, or one of them itself if it has that name         |
//! | named              | what the machine's authorities signed for its name                                            |
//! | on this machine    | the one certificate that it noted in its data directory, whoever signed it, for whatever name |
//!
//! A certificate is public: whoever shows a known one must also prove to hold its key.

use std::error::Error as StdError;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::sync::Arc;

use cofer_model::Kind;
use reqwest::ClientBuilder;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::exit::Failure;

/// Trusts the authorities in this file alone.
pub fn only_authorities(http: ClientBuilder, file: &Path) -> Result<ClientBuilder, Failure> {
    let refused = |why: &dyn Display| {
        let message = format!("{} is not a file of certificates (PEM): {why}", file.display());
        Failure::new(Kind::Invalid, message)
    };
    let listed: Vec<_> = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<_, _>>)
        .map_err(|error| refused(&error))?;
    let mut roots = RootCertStore::empty();
    for certificate in &listed {
        roots.add(certificate.clone()).map_err(|error| refused(&error))?;
    }
    let signed = WebPkiServerVerifier::builder(Arc::new(roots)).build().map_err(|error| refused(&error))?;
    Ok(trusting(http, Trusted::Authorities { listed, signed }))
}

/// Trusts this certificate (PEM) alone.
pub fn only_certificate(http: ClientBuilder, pem: &str) -> Result<ClientBuilder, Failure> {
    let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(Failure::internal)?;
    Ok(trusting(http, Trusted::Certificate(certificate)))
}

/// Whether there is no answer because we do not trust who would have given it.
pub fn is_lacking(error: &(dyn StdError + 'static)) -> bool {
    if let Some(tls) = error.downcast_ref::<Error>() {
        return matches!(tls, Error::InvalidCertificate(_));
    }
    let cause = match error.downcast_ref::<io::Error>() {
        // As its source it names the source of what it wraps.
        Some(wrapper) => wrapper.get_ref().map(|wrapped| wrapped as &(dyn StdError + 'static)),
        None => error.source(),
    };
    cause.is_some_and(is_lacking)
}

fn trusting(http: ClientBuilder, trusted: Trusted) -> ClientBuilder {
    let config = ClientConfig::builder();
    let crypto = config.crypto_provider().clone();
    let verifier = Arc::new(Verifier { trusted, crypto });
    let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    http.tls_backend_preconfigured(config)
}

#[derive(Debug)]
struct Verifier {
    trusted: Trusted,
    crypto: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Trusted {
    Certificate(CertificateDer<'static>),
    Authorities { listed: Vec<CertificateDer<'static>>, signed: Arc<WebPkiServerVerifier> },
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.trusted {
            Trusted::Certificate(known) if known == end_entity => Ok(ServerCertVerified::assertion()),
            Trusted::Certificate(_) => Err(CertificateError::ApplicationVerificationFailure.into()),
            // What `openssl req -x509` makes is its own authority, which the rules for chains have no place for.
            Trusted::Authorities { listed, .. } if listed.contains(end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            Trusted::Authorities { signed, .. } => {
                signed.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.crypto.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.crypto.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}
