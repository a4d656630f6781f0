// The noise, once for every number of lanes: included inside a namespace that has F (floats), U (uint32) and the
// primitives fset fadd fsub fmul fmin, uset uadd uxor uand uor ushl ushr, umulhi umullo, to_float as_float as_bits. No
// guard.
//
// Every step is one IEEE-754 operation rounded to nearest, never a fused multiply-add, so that C++, CUDA, NumPy and
// torch produce the same bits. Compile with -ffp-contract=off.

struct Words {
    U w[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
DSPARK_HD inline Words philox(U c0, U c1, U c2, U c3, uint32_t k0, uint32_t k1) {
    const U m0 = uset(0xD2511F53u), m1 = uset(0xCD9E8D57u);
    for (int i = 0; i < 10; ++i) {
        const U hi0 = umulhi(m0, c0), lo0 = umullo(m0, c0);
        const U hi1 = umulhi(m1, c2), lo1 = umullo(m1, c2);
        c0 = uxor(uxor(hi1, c1), uset(k0));
        c1 = lo1;
        c2 = uxor(uxor(hi0, c3), uset(k1));
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// log(x) of a normal x > 0, within 2 ulp (the polynomial is that of Cephes' logf).
DSPARK_HD inline F log_positive(F x) {
    const U shifted = uadd(as_bits(x), uset(0x3f800000u - 0x3f3504f3u));
    const F e = fsub(to_float(ushr<23>(shifted)), fset(127.0f));
    const F m = as_float(uadd(uand(shifted, uset(0x007fffffu)), uset(0x3f3504f3u)));  // in [sqrt(1/2), sqrt(2))
    const F f = fsub(m, fset(1.0f));
    const F z = fmul(f, f);
    F y = fset(7.0376836292e-2f);
    y = fadd(fmul(y, f), fset(-1.1514610310e-1f));
    y = fadd(fmul(y, f), fset(1.1676998740e-1f));
    y = fadd(fmul(y, f), fset(-1.2420140846e-1f));
    y = fadd(fmul(y, f), fset(1.4249322787e-1f));
    y = fadd(fmul(y, f), fset(-1.6668057665e-1f));
    y = fadd(fmul(y, f), fset(2.0000714765e-1f));
    y = fadd(fmul(y, f), fset(-2.4999993993e-1f));
    y = fadd(fmul(y, f), fset(3.3333331174e-1f));
    y = fmul(fmul(y, f), z);
    y = fadd(y, fmul(e, fset(-2.12194440e-4f)));
    y = fsub(y, fmul(z, fset(0.5f)));
    return fadd(fadd(f, y), fmul(e, fset(0.693359375f)));
}

// Standard Gumbel noise of one 32-bit word: -log(E), E = -log(1 - u), u = (word + 1/2) / 2^32 strictly inside (0, 1).
// A small u is kept to full relative precision: it is the tail that decides. Range: about -2.81 to kGumbelMax.
DSPARK_HD inline F gumbel(U word) {
    const F u = fmin(fmul(fadd(to_float(word), fset(0.5f)), fset(0x1p-32f)), fset(1.0f - 0x1p-24f));
    const F v = fsub(fset(1.0f), u);
    // What rounding took from 1 - u is u - (1 - v); log(v - that) is log(v) - that, to the precision of u.
    const F exponential = fsub(fsub(u, fsub(fset(1.0f), v)), log_positive(v));
    return fsub(fset(0.0f), log_positive(exponential));
}

// The hash of the engine's seeded sampler: MurmurHash3 over seed (64 bits), place in the sequence and token (32 each).
DSPARK_HD inline U murmur_step(U h, U k) {
    k = umullo(k, uset(0xCC9E2D51u));
    k = umullo(uor(ushl<15>(k), ushr<17>(k)), uset(0x1B873593u));
    h = uxor(h, k);
    h = uor(ushl<13>(h), ushr<19>(h));
    return uadd(umullo(h, uset(5)), uset(0xE6546B64u));
}

// `prefix` is seeded_prefix() of the row.
DSPARK_HD inline U seeded_hash(uint32_t prefix, U token) {
    U h = uxor(murmur_step(uset(prefix), token), uset(16));
    h = umullo(uxor(h, ushr<16>(h)), uset(0x85EBCA6Bu));
    h = umullo(uxor(h, ushr<13>(h)), uset(0xC2B2AE35u));
    return uxor(h, ushr<16>(h));
}

// Turned round, because gumbel() falls with its word and the engine's noise rises with the hash.
DSPARK_HD inline U coupled_word(uint32_t prefix, U token) {
    return uxor(seeded_hash(prefix, token), uset(0xFFFFFFFFu));
}
