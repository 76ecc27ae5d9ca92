//! FNV-1 and FNV-1a of all that is written.

use std::fmt;

macro_rules! hasher {
    ($name:ident, $int:ty, $offset:expr, $step:expr, $kind:literal) => {
        #[doc = concat!($kind, " of all that is written.")]
        #[derive(Clone, Debug)]
        pub struct $name($int);

        impl Default for $name {
            fn default() -> Self {
                Self($offset)
            }
        }

        impl $name {
            /// Take in these bytes.
            pub fn update(&mut self, bytes: &[u8]) {
                let step: fn($int, $int) -> $int = $step;
                self.0 = bytes.iter().fold(self.0, |hash, byte| step(hash, <$int>::from(*byte)));
            }

            /// The hash so far.
            pub fn finish(&self) -> $int {
                self.0
            }
        }

        impl fmt::Write for $name {
            fn write_str(&mut self, text: &str) -> fmt::Result {
                self.update(text.as_bytes());
                Ok(())
            }
        }
    };
}

const OFFSET_32: u32 = 0x811c_9dc5;
const PRIME_32: u32 = 0x0100_0193;
const OFFSET_128: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME_128: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

hasher!(Fnv32, u32, OFFSET_32, |hash, byte| hash.wrapping_mul(PRIME_32) ^ byte, "32-bit FNV-1");
hasher!(Fnv32a, u32, OFFSET_32, |hash, byte| (hash ^ byte).wrapping_mul(PRIME_32), "32-bit FNV-1a");
hasher!(
    Fnv128a,
    u128,
    OFFSET_128,
    |hash, byte| (hash ^ byte).wrapping_mul(PRIME_128),
    "128-bit FNV-1a"
);
