//! The small digests that other libraries make their keys with, where no crate of ours has them.

/// CRC-32 as in zip, Ethernet and every library's `crc32`.
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let odd = crc & 1 == 1;
            crc >>= 1;
            if odd {
                crc ^= 0xedb8_8320;
            }
        }
    }
    !crc
}

/// Java's `String.hashCode`, over UTF-16.
pub(super) fn java_hash(text: &str) -> i32 {
    text.encode_utf16()
        .fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// PostgreSQL's `hashtextextended(text, 0)` on a machine that counts from the little end. Its low
/// half is `hashtext(text)`.
pub(super) fn hash_text(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let start = 0x9e37_79b9_u32.wrapping_add(bytes.len() as u32).wrapping_add(3_923_095);
    let mut state = [start; 3];
    let mut blocks = bytes.chunks_exact(12);
    for block in &mut blocks {
        for (word, four) in state.iter_mut().zip(block.chunks_exact(4)) {
            *word = word.wrapping_add(little(four));
        }
        mix(&mut state);
    }
    let rest = blocks.remainder();
    let part = |from: usize, to: usize| rest.get(from..to.min(rest.len())).unwrap_or_default();
    state[0] = state[0].wrapping_add(little(part(0, 4)));
    state[1] = state[1].wrapping_add(little(part(4, 8)));
    // The lowest byte of the third word is left to the length.
    state[2] = state[2].wrapping_add(little(part(8, 12)) << 8);
    finish(&mut state);
    u64::from(state[1]) << 32 | u64::from(state[2])
}

fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn mix([a, b, c]: &mut [u32; 3]) {
    for (first, second) in [((4, 6), 8), ((16, 19), 4)] {
        *a = a.wrapping_sub(*c) ^ c.rotate_left(first.0);
        *c = c.wrapping_add(*b);
        *b = b.wrapping_sub(*a) ^ a.rotate_left(first.1);
        *a = a.wrapping_add(*c);
        *c = c.wrapping_sub(*b) ^ b.rotate_left(second);
        *b = b.wrapping_add(*a);
    }
}

fn finish([a, b, c]: &mut [u32; 3]) {
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(14));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(11));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(25));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(16));
    *a = (*a ^ *c).wrapping_sub(c.rotate_left(4));
    *b = (*b ^ *a).wrapping_sub(a.rotate_left(14));
    *c = (*c ^ *b).wrapping_sub(b.rotate_left(24));
}
