#![no_main]

use warpfire_fs::acl::Acl;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Ok(Some(list)) = Acl::from_xattr(data) {
        let again = Acl::from_xattr(&list.to_xattr());
        assert!(matches!(again, Ok(Some(same)) if same == list), "it means the same");
    }
});
