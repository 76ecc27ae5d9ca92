use std::fmt::Write;

use serde_json::json;

use super::*;

/// What upstream makes of these texts: as it keeps them, and as it keeps them for a resource.
#[test]
fn quantities_print_as_upstream() {
    for line in include_str!("testdata/quantities.txt").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let quantity = Quantity::parse(fields[0]);
        match (&fields[1..], quantity) {
            (["-"], quantity) => assert_eq!(quantity, None, "{}", fields[0]),
            ([plain, rounded], Some(quantity)) => {
                assert_eq!(quantity.to_string(), *plain, "{}", fields[0]);
                assert_eq!(quantity.rounded().to_string(), *rounded, "{}", fields[0]);
            }
            (_, quantity) => panic!("{line}: {quantity:?}"),
        }
    }
}

/// As upstream's `dump.ForHash` prints such a value.
#[test]
fn maps_are_sorted_by_printed_key() {
    let types = Types::parse(
        "t.T\n  Small map[string]int small\n  Numbers map[int]*t.U\nt.U\n  Size uint64\n",
    );
    let value = json!({
        "small": {"b": 1, "B": -2},
        "numbers": {"10": {"size": u64::MAX}, "9": null},
    });
    let mut text = String::new();
    print(&types, "*t.T", &value, &mut text).ok();
    assert_eq!(
        text,
        "(*t.T){Small:(map[string]int)map[B:-2 b:1] \
         Numbers:(map[int]*t.U)map[9:<nil> 10:<*>{Size:(uint64)18446744073709551615}]}"
    );
}

#[test]
fn hashes_are_fnv() {
    let (mut small, mut large) = (Fnv32a::default(), Fnv128a::default());
    for hasher in [&mut small as &mut dyn Write, &mut large] {
        hasher.write_str("foobar").ok();
    }
    assert_eq!(small.finish(), 0xbf9c_f968);
    assert_eq!(large.finish(), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
}
