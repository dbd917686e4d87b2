//! Sealing under the master key: XChaCha20-Poly1305, a fresh nonce each time, and the place of the value (project
//! and name) as associated data, so that a row copied to another place does not open there.
//!
//! The sealed form is one byte of version, 24 of nonce, then ciphertext and tag.

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use cofer_model::{ProjectId, SecretName, ServerId};
use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE};
use secrecy::{ExposeSecret, SecretBox, SecretString};
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use crate::tokens::fill_random;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 24;
const VERSION: u8 = 1;

/// The key that seals all secrets. It cannot be printed, and its memory is wiped.
pub struct MasterKey(SecretBox<[u8; KEY_BYTES]>);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a master key is {KEY_BYTES} bytes in hexadecimal (64 digits) or base64 (44 characters); `openssl rand -hex 32` makes one"
)]
pub struct BadMasterKey;

/// The value does not open: another key, another place, or altered bytes. Which, nobody can tell.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sealed value does not open with this key in this place")]
pub(crate) struct DoesNotOpen;

/// What a sealed value belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'a> {
    /// The known text by which a wrong key is noticed.
    Check,
    Secret(ProjectId, &'a SecretName),
    Login(ServerId),
}

impl Place<'_> {
    fn associated_data(&self) -> Vec<u8> {
        match self {
            Self::Check => b"cofer/check".to_vec(),
            Self::Secret(project, name) => {
                [b"cofer/secret/".as_slice(), project.0.as_bytes(), name.as_str().as_bytes()].concat()
            }
            Self::Login(server) => [b"cofer/login/".as_slice(), server.0.as_bytes()].concat(),
        }
    }
}

impl MasterKey {
    pub fn generate() -> Self {
        Self(SecretBox::init_with_mut(|bytes: &mut [u8; KEY_BYTES]| fill_random(bytes)))
    }

    /// Reads 32 bytes in hexadecimal or base64, in whichever it is.
    pub fn parse(text: &SecretString) -> Result<Self, BadMasterKey> {
        let text = text.expose_secret().trim();
        let mut bytes = HEXLOWER_PERMISSIVE
            .decode(text.as_bytes())
            .or_else(|_| BASE64.decode(text.as_bytes()))
            .or_else(|_| BASE64URL_NOPAD.decode(text.trim_end_matches('=').as_bytes()))
            .map_err(|_| BadMasterKey)?;
        let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).map_err(|_| BadMasterKey);
        bytes.zeroize();
        Ok(Self(SecretBox::new(Box::new(key?))))
    }

    /// The form in which it is written to the key file.
    pub fn to_hex(&self) -> SecretString {
        SecretString::from(HEXLOWER.encode(self.0.expose_secret()))
    }

    /// Tells keys apart without telling anything about them.
    pub fn fingerprint(&self) -> String {
        let digest =
            Sha256::new().chain_update(b"cofer master key").chain_update(self.0.expose_secret()).finalize();
        HEXLOWER.encode(&digest[..8])
    }

    /// Another key, for one purpose, that tells nothing of this one.
    pub fn derived(&self, purpose: &str) -> [u8; KEY_BYTES] {
        let digest = Sha256::new().chain_update(b"cofer derived key\0").chain_update(purpose);
        digest.chain_update(b"\0").chain_update(self.0.expose_secret()).finalize().into()
    }

    pub(crate) fn seal(&self, place: Place<'_>, clear: &[u8]) -> Vec<u8> {
        let mut nonce = [0_u8; NONCE_BYTES];
        fill_random(&mut nonce);
        let payload = Payload { msg: clear, aad: &place.associated_data() };
        #[expect(clippy::expect_used, reason = "fails only for messages of 256 GiB and more")]
        let ciphertext = self.cipher().encrypt(&XNonce::from(nonce), payload).expect("fits");
        [&[VERSION], nonce.as_slice(), &ciphertext].concat()
    }

    pub(crate) fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<SecretString, DoesNotOpen> {
        let (version, rest) = sealed.split_first().ok_or(DoesNotOpen)?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(DoesNotOpen)?;
        if *version != VERSION {
            return Err(DoesNotOpen);
        }
        let payload = Payload { msg: ciphertext, aad: &place.associated_data() };
        let clear = self.cipher().decrypt(&XNonce::from(*nonce), payload).map_err(|_| DoesNotOpen)?;
        String::from_utf8(clear).map(SecretString::from).map_err(|_| DoesNotOpen)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(self.0.expose_secret().into())
    }
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterKey({})", self.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SecretName {
        text.to_owned().try_into().unwrap()
    }

    #[test]
    fn a_sealed_value_opens_only_in_its_place_and_with_its_key() {
        let (key, project, other) = (MasterKey::generate(), ProjectId::generate(), ProjectId::generate());
        let (a, b) = (name("A"), name("B"));
        let sealed = key.seal(Place::Secret(project, &a), b"value");
        let open =
            |key: &MasterKey, place| key.open(place, &sealed).map(|clear| clear.expose_secret().to_owned());

        assert_eq!(open(&key, Place::Secret(project, &a)).as_deref(), Ok("value"));
        assert_eq!(open(&key, Place::Secret(project, &b)), Err(DoesNotOpen));
        assert_eq!(open(&key, Place::Secret(other, &a)), Err(DoesNotOpen));
        assert_eq!(open(&key, Place::Check), Err(DoesNotOpen));
        assert_eq!(open(&MasterKey::generate(), Place::Secret(project, &a)), Err(DoesNotOpen));
    }

    #[test]
    fn no_altered_byte_goes_unnoticed() {
        let key = MasterKey::generate();
        let sealed = key.seal(Place::Check, b"value");
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(key.open(Place::Check, &altered).is_err(), "byte {at}");
            assert!(key.open(Place::Check, &sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn the_same_value_never_seals_to_the_same_bytes() {
        let key = MasterKey::generate();
        assert_ne!(key.seal(Place::Check, b"value"), key.seal(Place::Check, b"value"));
    }

    #[test]
    fn a_key_reads_as_hexadecimal_and_as_base64() {
        let key = MasterKey::generate();
        let bytes = key.0.expose_secret();
        for text in [HEXLOWER.encode(bytes), BASE64.encode(bytes), BASE64URL_NOPAD.encode(bytes)] {
            assert_eq!(MasterKey::parse(&text.into()).unwrap().fingerprint(), key.fingerprint());
        }
        for bad in ["", "secret", "00", &"0".repeat(63), &"0".repeat(66), &"!".repeat(44)] {
            assert_eq!(MasterKey::parse(&bad.into()).unwrap_err(), BadMasterKey, "{bad}");
        }
    }

    #[test]
    fn neither_the_key_nor_a_token_hash_tells_itself_in_a_debug_print() {
        let key = MasterKey::generate();
        assert_eq!(format!("{key:?}"), format!("MasterKey({})", key.fingerprint()));
        assert!(!format!("{key:?}").contains(key.to_hex().expose_secret()));
    }
}
