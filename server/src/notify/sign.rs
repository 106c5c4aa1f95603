//! Who sent it, and that it is whole: HMAC-SHA-256 (RFC 2104) over the time and the body.

use sha2::{Digest, Sha256};

use crate::files::hex;

const BLOCK_BYTES: usize = 64;

/// `sha256=HEX` over `TIMESTAMP.BODY`: the time is signed, so that an old copy can be refused.
pub(super) fn signature(secret: &[u8], timestamp: &str, body: &[u8]) -> String {
    let text = [timestamp.as_bytes(), b".", body].concat();
    format!("sha256={}", hex(&hmac(secret, &text)))
}

fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0; BLOCK_BYTES];
    if key.len() > BLOCK_BYTES {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let hash = |pad: u8, text: &[u8]| {
        let mut hash = Sha256::new();
        hash.update(block.map(|byte| byte ^ pad));
        hash.update(text);
        <[u8; 32]>::from(hash.finalize())
    };
    hash(0x5c, &hash(0x36, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test cases 1, 2, 3 and 6 of RFC 4231.
    #[test]
    fn the_code_is_that_of_the_standard() {
        let of = |key: &[u8], text: &[u8]| hex(&hmac(key, text));
        assert_eq!(
            of(&[0x0b; 20], b"Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            of(b"Jefe", b"what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            of(&[0xaa; 20], &[0xdd; 50]),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"
        );
        let text = b"Test Using Larger Than Block-Size Key - Hash Key First";
        assert_eq!(
            of(&[0xaa; 131], text),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
        let signed = signature(b"Jefe", "what do ya want for nothing?", b"");
        assert_ne!(
            signed,
            format!("sha256={}", of(b"Jefe", b"what do ya want for nothing?"))
        );
    }
}
