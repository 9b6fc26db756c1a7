#include "base/math64.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2^(j/128) as hi + lo, lo the part that a double can't hold. */
static const struct {
    double hi, lo;
} exp_table[128] = {
    {0x1p+0, 0}, {0x1.0163da9fb3335p+0, 0x1.b61299ab8cdb7p-54},
    {0x1.02c9a3e778061p+0, -0x1.19083535b085dp-56}, {0x1.04315e86e7f85p+0, -0x1.0a31c1977c96ep-54},
    {0x1.059b0d3158574p+0, 0x1.d73e2a475b465p-55}, {0x1.0706b29ddf6dep+0, -0x1.c91dfe2b13c27p-55},
    {0x1.0874518759bc8p+0, 0x1.186be4bb284ffp-57}, {0x1.09e3ecac6f383p+0, 0x1.1487818316136p-54},
    {0x1.0b5586cf9890fp+0, 0x1.8a62e4adc610bp-54}, {0x1.0cc922b7247f7p+0, 0x1.01edc16e24f71p-54},
    {0x1.0e3ec32d3d1a2p+0, 0x1.03a1727c57b53p-59}, {0x1.0fb66affed31bp+0, -0x1.b9bedc44ebd7bp-57},
    {0x1.11301d0125b51p+0, -0x1.6c51039449b3ap-54}, {0x1.12abdc06c31ccp+0, -0x1.1b514b36ca5c7p-58},
    {0x1.1429aaea92dep+0, -0x1.32fbf9af1369ep-54}, {0x1.15a98c8a58e51p+0, 0x1.2406ab9eeab0ap-55},
    {0x1.172b83c7d517bp+0, -0x1.19041b9d78a76p-55}, {0x1.18af9388c8deap+0, -0x1.11023d1970f6cp-54},
    {0x1.1a35beb6fcb75p+0, 0x1.e5b4c7b4968e4p-55}, {0x1.1bbe084045cd4p+0, -0x1.95386352ef607p-54},
    {0x1.1d4873168b9aap+0, 0x1.e016e00a2643cp-54}, {0x1.1ed5022fcd91dp+0, -0x1.1df98027bb78cp-54},
    {0x1.2063b88628cd6p+0, 0x1.dc775814a8495p-55}, {0x1.21f49917ddc96p+0, 0x1.2a97e9494a5eep-55},
    {0x1.2387a6e756238p+0, 0x1.9b07eb6c70573p-54}, {0x1.251ce4fb2a63fp+0, 0x1.ac155bef4f4a4p-55},
    {0x1.26b4565e27cddp+0, 0x1.2bd339940e9d9p-55}, {0x1.284dfe1f56381p+0, -0x1.a4c3a8c3f0d7ep-54},
    {0x1.29e9df51fdee1p+0, 0x1.612e8afad1255p-55}, {0x1.2b87fd0dad99p+0, -0x1.10adcd6381aa4p-59},
    {0x1.2d285a6e4030bp+0, 0x1.0024754db41d5p-54}, {0x1.2ecafa93e2f56p+0, 0x1.1ca0f45d52383p-56},
    {0x1.306fe0a31b715p+0, 0x1.6f46ad23182e4p-55}, {0x1.32170fc4cd831p+0, 0x1.a9ce78e18047cp-55},
    {0x1.33c08b26416ffp+0, 0x1.32721843659a6p-54}, {0x1.356c55f929ff1p+0, -0x1.b5cee5c4e4628p-55},
    {0x1.371a7373aa9cbp+0, -0x1.63aeabf42eae2p-54}, {0x1.38cae6d05d866p+0, -0x1.e958d3c9904bdp-54},
    {0x1.3a7db34e59ff7p+0, -0x1.5e436d661f5e3p-56}, {0x1.3c32dc313a8e5p+0, -0x1.efff8375d29c3p-54},
    {0x1.3dea64c123422p+0, 0x1.ada0911f09ebcp-55}, {0x1.3fa4504ac801cp+0, -0x1.7d023f956f9f3p-54},
    {0x1.4160a21f72e2ap+0, -0x1.ef3691c309278p-58}, {0x1.431f5d950a897p+0, -0x1.1c7dde35f7999p-55},
    {0x1.44e086061892dp+0, 0x1.89b7a04ef80dp-59}, {0x1.46a41ed1d0057p+0, 0x1.c944bd1648a76p-54},
    {0x1.486a2b5c13cdp+0, 0x1.3c1a3b69062fp-56}, {0x1.4a32af0d7d3dep+0, 0x1.9cb62f3d1be56p-54},
    {0x1.4bfdad5362a27p+0, 0x1.d4397afec42e2p-56}, {0x1.4dcb299fddd0dp+0, 0x1.8ecdbbc6a7833p-54},
    {0x1.4f9b2769d2ca7p+0, -0x1.4b309d25957e3p-54}, {0x1.516daa2cf6642p+0, -0x1.f768569bd93efp-55},
    {0x1.5342b569d4f82p+0, -0x1.07abe1db13cadp-55}, {0x1.551a4ca5d920fp+0, -0x1.d689cefede59bp-55},
    {0x1.56f4736b527dap+0, 0x1.9bb2c011d93adp-54}, {0x1.58d12d497c7fdp+0, 0x1.295e15b9a1de8p-55},
    {0x1.5ab07dd485429p+0, 0x1.6324c054647adp-54}, {0x1.5c9268a5946b7p+0, 0x1.c4b1b816986a2p-60},
    {0x1.5e76f15ad2148p+0, 0x1.ba6f93080e65ep-54}, {0x1.605e1b976dc09p+0, -0x1.3e2429b56de47p-54},
    {0x1.6247eb03a5585p+0, -0x1.383c17e40b497p-54}, {0x1.6434634ccc32p+0, -0x1.c483c759d8933p-55},
    {0x1.6623882552225p+0, -0x1.bb60987591c34p-54}, {0x1.68155d44ca973p+0, 0x1.038ae44f73e65p-57},
    {0x1.6a09e667f3bcdp+0, -0x1.bdd3413b26456p-54}, {0x1.6c012750bdabfp+0, -0x1.2895667ff0b0dp-56},
    {0x1.6dfb23c651a2fp+0, -0x1.bbe3a683c88abp-57}, {0x1.6ff7df9519484p+0, -0x1.83c0f25860ef6p-55},
    {0x1.71f75e8ec5f74p+0, -0x1.16e4786887a99p-55}, {0x1.73f9a48a58174p+0, -0x1.0a8d96c65d53cp-54},
    {0x1.75feb564267c9p+0, -0x1.0245957316dd3p-54}, {0x1.780694fde5d3fp+0, 0x1.866b80a02162dp-54},
    {0x1.7a11473eb0187p+0, -0x1.41577ee04992fp-55}, {0x1.7c1ed0130c132p+0, 0x1.f124cd1164dd6p-54},
    {0x1.7e2f336cf4e62p+0, 0x1.05d02ba15797ep-56}, {0x1.80427543e1a12p+0, -0x1.27c86626d972bp-54},
    {0x1.82589994cce13p+0, -0x1.d4c1dd41532d8p-54}, {0x1.8471a4623c7adp+0, -0x1.8d684a341cdfbp-55},
    {0x1.868d99b4492edp+0, -0x1.fc6f89bd4f6bap-54}, {0x1.88ac7d98a6699p+0, 0x1.994c2f37cb53ap-54},
    {0x1.8ace5422aa0dbp+0, 0x1.6e9f156864b27p-54}, {0x1.8cf3216b5448cp+0, -0x1.0d55e32e9e3aap-56},
    {0x1.8f1ae99157736p+0, 0x1.5cc13a2e3976cp-55}, {0x1.9145b0b91ffc6p+0, -0x1.dd6792e582524p-54},
    {0x1.93737b0cdc5e5p+0, -0x1.75fc781b57ebcp-57}, {0x1.95a44cbc8520fp+0, -0x1.64b7c96a5f039p-56},
    {0x1.97d829fde4e5p+0, -0x1.d185b7c1b85d1p-54}, {0x1.9a0f170ca07bap+0, -0x1.173bd91cee632p-54},
    {0x1.9c49182a3f09p+0, 0x1.c7c46b071f2bep-56}, {0x1.9e86319e32323p+0, 0x1.824ca78e64c6ep-56},
    {0x1.a0c667b5de565p+0, -0x1.359495d1cd533p-54}, {0x1.a309bec4a2d33p+0, 0x1.6305c7ddc36abp-54},
    {0x1.a5503b23e255dp+0, -0x1.d2f6edb8d41e1p-54}, {0x1.a799e1330b358p+0, 0x1.bcb7ecac563c7p-54},
    {0x1.a9e6b5579fdbfp+0, 0x1.0fac90ef7fd31p-54}, {0x1.ac36bbfd3f37ap+0, -0x1.f9234cae76cdp-55},
    {0x1.ae89f995ad3adp+0, 0x1.7a1cd345dcc81p-54}, {0x1.b0e07298db666p+0, -0x1.bdef54c80e425p-54},
    {0x1.b33a2b84f15fbp+0, -0x1.2805e3084d708p-57}, {0x1.b59728de5593ap+0, -0x1.c71dfbbba6de3p-54},
    {0x1.b7f76f2fb5e47p+0, -0x1.5584f7e54ac3bp-56}, {0x1.ba5b030a1064ap+0, -0x1.efcd30e54292ep-54},
    {0x1.bcc1e904bc1d2p+0, 0x1.23dd07a2d9e84p-55}, {0x1.bf2c25bd71e09p+0, -0x1.efdca3f6b9c73p-54},
    {0x1.c199bdd85529cp+0, 0x1.11065895048ddp-55}, {0x1.c40ab5fffd07ap+0, 0x1.b4537e083c60ap-54},
    {0x1.c67f12e57d14bp+0, 0x1.2884dff483cadp-54}, {0x1.c8f6d9406e7b5p+0, 0x1.1acbc48805c44p-56},
    {0x1.cb720dcef9069p+0, 0x1.503cbd1e949dbp-56}, {0x1.cdf0b555dc3fap+0, -0x1.dd83b53829d72p-55},
    {0x1.d072d4a07897cp+0, -0x1.cbc3743797a9cp-54}, {0x1.d2f87080d89f2p+0, -0x1.d487b719d8578p-54},
    {0x1.d5818dcfba487p+0, 0x1.2ed02d75b3707p-55}, {0x1.d80e316c98398p+0, -0x1.11ec18beddfe8p-54},
    {0x1.da9e603db3285p+0, 0x1.c2300696db532p-54}, {0x1.dd321f301b46p+0, 0x1.2da5778f018c3p-54},
    {0x1.dfc97337b9b5fp+0, -0x1.1a5cd4f184b5cp-54}, {0x1.e264614f5a129p+0, -0x1.7b627817a1496p-54},
    {0x1.e502ee78b3ff6p+0, 0x1.39e8980a9cc8fp-55}, {0x1.e7a51fbc74c83p+0, 0x1.2d522ca0c8de2p-54},
    {0x1.ea4afa2a490dap+0, -0x1.e9c23179c2893p-54}, {0x1.ecf482d8e67f1p+0, -0x1.c93f3b411ad8cp-54},
    {0x1.efa1bee615a27p+0, 0x1.dc7f486a4b6bp-54}, {0x1.f252b376bba97p+0, 0x1.3a1a5bf0d8e43p-54},
    {0x1.f50765b6e454p+0, 0x1.9d3e12dd8a18bp-54}, {0x1.f7bfdad9cbe14p+0, -0x1.dbb12d006350ap-54},
    {0x1.fa7c1819e90d8p+0, 0x1.74853f3a5931ep-55}, {0x1.fd3c22b8f71f1p+0, 0x1.2eb74966579e7p-57},
};

/* Bucket j of the mantissa: c, about the reciprocal of its middle in 11 bits, and -log(c) as hi (a
 * multiple of 2^-42, so that adding a multiple of the leading part of log 2 is exact) + lo. The bucket
 * around 1 has c = 1. */
static const struct {
    double c, hi, lo;
} log_table[128] = {
    {0x1.554p+0, -0x1.26561f1338p-2, -0x1.8b48866faa45fp-44},
    {0x1.538p+0, -0x1.2112559861p-2, -0x1.82e78ba2950c4p-44},
    {0x1.51cp+0, -0x1.1bc794fd1dp-2, 0x1.ccf0c747ba7bep-44},
    {0x1.5p+0, -0x1.1675cababap-2, -0x1.8380e731f55c4p-44},
    {0x1.4e4p+0, -0x1.111ce4003fp-2, 0x1.b3237096b4b6bp-46},
    {0x1.4ccp+0, -0x1.0c81d4860bp-2, 0x1.e5bcf401d1731p-44},
    {0x1.4bp+0, -0x1.071b85fcd6p-2, 0x1.bcb8ba3e01a11p-44},
    {0x1.494p+0, -0x1.01ade3913ap-2, 0x1.08930ccdc1521p-46},
    {0x1.47cp+0, -0x1.fa01c3bb58p-3, 0x1.a1f71fae1d786p-46},
    {0x1.46p+0, -0x1.ef0adcbdc6p-3, 0x1.b26b79c86af24p-45},
    {0x1.448p+0, -0x1.e598ed5a88p-3, 0x1.d134bcf1e98a1p-47},
    {0x1.42cp+0, -0x1.da85d620cep-3, -0x1.40194c16cc7ecp-45},
    {0x1.414p+0, -0x1.d0fb7f2256p-3, 0x1.af52b20633b29p-47},
    {0x1.3fcp+0, -0x1.c765b9e4d6p-3, -0x1.1ab6b36976f6cp-44},
    {0x1.3e4p+0, -0x1.bdc46ae344p-3, -0x1.625b4023d6505p-44},
    {0x1.3c8p+0, -0x1.b2797ee464p-3, 0x1.be88a906d00a9p-44},
    {0x1.3bp+0, -0x1.a8becfc882p-3, -0x1.e3185cf21b9cfp-44},
    {0x1.398p+0, -0x1.9ef83d276ap-3, 0x1.730b7b3f9cep-45},
    {0x1.38p+0, -0x1.9525a9cf46p-3, 0x1.297137d9f158fp-44},
    {0x1.368p+0, -0x1.8b46f82236p-3, -0x1.2d9f2102dd7c9p-46},
    {0x1.354p+0, -0x1.83040c91bcp-3, -0x1.e5b71c6e66f32p-44},
    {0x1.33cp+0, -0x1.790ed4ee26p-3, -0x1.99bbd4e7746f6p-46},
    {0x1.324p+0, -0x1.6f0d28ae56p-3, -0x1.69737c93373dap-44},
    {0x1.30cp+0, -0x1.64fee8826p-3, 0x1.da40d759dded6p-46},
    {0x1.2f8p+0, -0x1.5c94007598p-3, 0x1.a8d948cd23322p-44},
    {0x1.2ep+0, -0x1.526e5e3a1cp-3, 0x1.790ba37fc5238p-44},
    {0x1.2c8p+0, -0x1.483bccce6ep-3, -0x1.eea52723f6369p-46},
    {0x1.2b4p+0, -0x1.3fb25a5952p-3, -0x1.195be6b358ff7p-44},
    {0x1.2ap+0, -0x1.371fc201e8p-3, -0x1.ee8779b2d8abcp-44},
    {0x1.288p+0, -0x1.2cca0f5f6p-3, 0x1.b5ef191aff12p-44},
    {0x1.274p+0, -0x1.2423113ba6p-3, 0x1.e3a0078ee9d9cp-44},
    {0x1.26p+0, -0x1.1b72ad52f6p-3, -0x1.e80a41811a396p-45},
    {0x1.248p+0, -0x1.10f8e42254p-3, 0x1.93b3843396307p-45},
    {0x1.234p+0, -0x1.08338affa2p-3, -0x1.0533cac823e27p-44},
    {0x1.22p+0, -0x1.fec9131dcp-4, 0x1.54555d1ae6607p-44},
    {0x1.20cp+0, -0x1.ed1794e838p-4, 0x1.fd143749d0484p-46},
    {0x1.1f8p+0, -0x1.db5270187cp-4, -0x1.9277856ae181fp-44},
    {0x1.1e4p+0, -0x1.c97978d79p-4, 0x1.6e010977d1884p-44},
    {0x1.1dp+0, -0x1.b78c82bb1p-4, 0x1.25ef7bc3987e7p-44},
    {0x1.1bcp+0, -0x1.a58b60c2b4p-4, 0x1.cdc735c5c9f2ap-44},
    {0x1.1a8p+0, -0x1.9375e55594p-4, -0x1.eddc37380c364p-44},
    {0x1.194p+0, -0x1.814be23f8cp-4, -0x1.b2381da82fdfdp-51},
    {0x1.18p+0, -0x1.6f0d28ae58p-4, 0x1.4b4641b664613p-44},
    {0x1.17p+0, -0x1.60658a9374p-4, -0x1.0c3b1dee9c4f8p-44},
    {0x1.15cp+0, -0x1.4e01108a34p-4, -0x1.ae5cfdf2c5ae5p-44},
    {0x1.148p+0, -0x1.3b87598b1cp-4, 0x1.2241594aca313p-45},
    {0x1.134p+0, -0x1.28f83450ecp-4, -0x1.a8d75aa119769p-44},
    {0x1.124p+0, -0x1.1a0fba1bf8p-4, -0x1.4a3fcc319d6dcp-45},
    {0x1.11p+0, -0x1.075983599p-4, 0x1.b8ecfe4b59987p-44},
    {0x1.1p+0, -0x1.f0a30c0118p-5, 0x1.d599e83368e91p-45},
    {0x1.0ecp+0, -0x1.cae72fb96p-5, 0x1.efabf2025b1bep-44},
    {0x1.0dcp+0, -0x1.ac9722171p-5, -0x1.f8d3ef013222cp-45},
    {0x1.0c8p+0, -0x1.868a83084p-5, 0x1.2623a134ac693p-46},
    {0x1.0b8p+0, -0x1.67f94f0948p-5, -0x1.ecc1f3e7e4ed7p-44},
    {0x1.0a8p+0, -0x1.494acc34d8p-5, -0x1.11c78a56fd247p-45},
    {0x1.094p+0, -0x1.22c71bcea8p-5, -0x1.d2818f87f888fp-48},
    {0x1.084p+0, -0x1.03d5d85e7p-5, -0x1.f778960ed29cfp-44},
    {0x1.074p+0, -0x1.c98d18d01p-6, 0x1.bf6150589df0fp-45},
    {0x1.064p+0, -0x1.8b31facaap-6, 0x1.3fc78a96e4964p-44},
    {0x1.05p+0, -0x1.3cea44347p-6, 0x1.6a2c432d6a40bp-44},
    {0x1.04p+0, -0x1.fc0a8b0fcp-7, -0x1.f1e7cf6d3a69cp-50},
    {0x1.03p+0, -0x1.7dc475f82p-7, 0x1.eb1245b5da1f5p-44},
    {0x1.02p+0, -0x1.fe02a6b1p-8, -0x1.9e23f0dda40e4p-46},
    {0x1.01p+0, -0x1.ff00aa2bp-9, -0x1.0bc04a086b56ap-45},
    {0x1p+0, 0, 0},
    {0x1.fcp-1, 0x1.010157588p-7, 0x1.bce251998b506p-44},
    {0x1.f8p-1, 0x1.020565893p-6, 0x1.611d27c8e8417p-44},
    {0x1.f48p-1, 0x1.74321d3dp-6, 0x1.b4a690fe94778p-48},
    {0x1.f08p-1, 0x1.f7a9b1678p-6, 0x1.42ad9271be7d7p-45},
    {0x1.edp-1, 0x1.35c8bfaa1p-5, 0x1.8357d5ef9eb35p-44},
    {0x1.e9p-1, 0x1.788595a358p-5, -0x1.08b0d083b3a4cp-46},
    {0x1.e58p-1, 0x1.b35dd9b588p-5, 0x1.d5674d6cf558ep-44},
    {0x1.e2p-1, 0x1.eea31c0068p-5, 0x1.c3dd83606d891p-44},
    {0x1.de8p-1, 0x1.152b799bb4p-4, -0x1.9bb2907030829p-47},
    {0x1.dbp-1, 0x1.333d7f8184p-4, -0x1.692b6a81b8848p-49},
    {0x1.d78p-1, 0x1.518874226p-4, 0x1.30a1d96258b3ep-44},
    {0x1.d4p-1, 0x1.700d30aeacp-4, 0x1.c1e8da99ded32p-49},
    {0x1.d1p-1, 0x1.8a6477a91cp-4, 0x1.c28c0af9bd6dfp-44},
    {0x1.cd8p-1, 0x1.a956d3ecacp-4, 0x1.e63794c02c4afp-44},
    {0x1.ca8p-1, 0x1.c40d6425a4p-4, 0x1.cb1121d1930ddp-44},
    {0x1.c7p-1, 0x1.e3707ee304p-4, 0x1.0f684e6766abdp-45},
    {0x1.c4p-1, 0x1.fe89139dbcp-4, 0x1.56594d82f7a82p-44},
    {0x1.c1p-1, 0x1.0ce7ecdcccp-3, 0x1.4652dabff5447p-46},
    {0x1.bep-1, 0x1.1aa2b7e24p-3, -0x1.1ac38dde3b366p-44},
    {0x1.bbp-1, 0x1.28753bc11ap-3, 0x1.7494e359302e6p-44},
    {0x1.b8p-1, 0x1.365fcb015ap-3, -0x1.fd3a0afb9691bp-44},
    {0x1.b5p-1, 0x1.4462b9dc9cp-3, -0x1.84858a711b062p-44},
    {0x1.b2p-1, 0x1.527e5e4a1cp-3, -0x1.4e60b8d4b411dp-44},
    {0x1.afp-1, 0x1.60b3100b0ap-3, -0x1.71456c988f814p-44},
    {0x1.ac8p-1, 0x1.6c9d07d204p-3, -0x1.c73fafd9b2dcap-50},
    {0x1.a98p-1, 0x1.7b00916516p-3, -0x1.ae75fcb067e57p-44},
    {0x1.a7p-1, 0x1.871213750ep-3, 0x1.328eb42f9af75p-44},
    {0x1.a4p-1, 0x1.95a5adcf7p-3, 0x1.7f22858a0ff6fp-47},
    {0x1.a18p-1, 0x1.a1dfc40f1cp-3, -0x1.01e0f004f3781p-44},
    {0x1.9fp-1, 0x1.ae2ca6f672p-3, 0x1.7a8d5ae54f55p-44},
    {0x1.9cp-1, 0x1.bd087383bep-3, -0x1.d4bc4595412b6p-45},
    {0x1.998p-1, 0x1.c97f8079d4p-3, 0x1.3b161a8c6e6c5p-45},
    {0x1.97p-1, 0x1.d60a17f904p-3, -0x1.5d6e06fc20d39p-44},
    {0x1.948p-1, 0x1.e2a877a6b2p-3, 0x1.823817787081ap-44},
    {0x1.92p-1, 0x1.ef5ade4ddp-3, -0x1.a211565bb8e11p-51},
    {0x1.8f8p-1, 0x1.fc218be62p-3, 0x1.4bba46f1cf6ap-44},
    {0x1.8dp-1, 0x1.047e60cde8p-2, 0x1.dbdf10d397f3cp-45},
    {0x1.8bp-1, 0x1.09aa572e6cp-2, 0x1.b50a1e1734342p-44},
    {0x1.888p-1, 0x1.102ac0a35dp-2, -0x1.f1fbddfdfd686p-45},
    {0x1.86p-1, 0x1.16b5ccbadp-2, -0x1.23299042d74bfp-44},
    {0x1.84p-1, 0x1.1bf99635a7p-2, -0x1.1ac89575c2125p-44},
    {0x1.818p-1, 0x1.22981fbef8p-2, -0x1.a1421609580dap-44},
    {0x1.7f8p-1, 0x1.27ebaf58d9p-2, -0x1.b198800b4bda7p-45},
    {0x1.7dp-1, 0x1.2e9e2bce12p-2, 0x1.4300c128d1dc2p-45},
    {0x1.7bp-1, 0x1.3401e12aedp-2, -0x1.17c73556e291dp-44},
    {0x1.788p-1, 0x1.3ac8ca38e6p-2, -0x1.d0befbc02be4ap-45},
    {0x1.768p-1, 0x1.403d086ceap-2, 0x1.e6ef574487308p-44},
    {0x1.748p-1, 0x1.45b8c0a17ep-2, -0x1.d9120e7d0a853p-47},
    {0x1.728p-1, 0x1.4b3c077268p-2, -0x1.65b4681052b9fp-46},
    {0x1.7p-1, 0x1.522ae0738ap-2, 0x1.ebe708164c759p-45},
    {0x1.6ep-1, 0x1.57bf753c8dp-2, 0x1.fadedee5d40efp-46},
    {0x1.6cp-1, 0x1.5d5bddf596p-2, -0x1.a0b2a08a465dcp-47},
    {0x1.6ap-1, 0x1.630030b3abp-2, -0x1.db623e731aep-45},
    {0x1.68p-1, 0x1.68ac83e9c7p-2, -0x1.7af966c548a3p-44},
    {0x1.66p-1, 0x1.6e60ee6af2p-2, -0x1.a37a6a0f7749ep-44},
    {0x1.64p-1, 0x1.741d876c68p-2, -0x1.13a7b5b11cfa7p-44},
    {0x1.62p-1, 0x1.79e26687dp-2, -0x1.309c168817444p-44},
    {0x1.608p-1, 0x1.7e3b8a49acp-2, 0x1.55dd17f4b4c17p-52},
    {0x1.5e8p-1, 0x1.840f1e1266p-2, 0x1.fc03bddc7f361p-44},
    {0x1.5c8p-1, 0x1.89eb3af433p-2, -0x1.e2e9f9f0ddd8fp-44},
    {0x1.5bp-1, 0x1.8e55f9b34ap-2, -0x1.1f21d89c89c45p-44},
    {0x1.59p-1, 0x1.9441434a03p-2, 0x1.2cb81c95fff43p-45},
    {0x1.57p-1, 0x1.9a355c33bdp-2, 0x1.ae73535438bebp-44},
};

static inline uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline double of_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* exp(x) = 2^(k/128) * exp(r), k = round(128 x / log 2), |r| <= log(2)/256: the table gives the first
 * factor, the Taylor series to r^5 the second (next term: 6e-19 of it). log(2)/128 is split so that k *
 * STEP_HI is exact. */
static inline double exp_core(double x)
{
    static const double SHIFT = 0x1.8p52, INV = 0x1.71547652b82fep+7;
    static const double STEP_HI = 0x1.62e42fefcp-8, STEP_LO = -0x1.c610ca86c3899p-44;
    if (!(x >= -708.0)) // NaN, or a result that would leave the normal range
        return x != x ? x : 0.0;
    if (x > 0x1.62e42fefa39efp+9)
        return (double)INFINITY;
    double kd = x * INV + SHIFT; // the low bits of the sum hold k
    uint64_t ki = bits_of(kd);
    kd -= SHIFT;
    double r = (x - kd * STEP_HI) - kd * STEP_LO;
    double r2 = r * r;
    double p = r + r2 * (0.5 + r * (1.0 / 6) + r2 * (1.0 / 24 + r * (1.0 / 120)));
    double hi = exp_table[ki & 127].hi, y = hi + (exp_table[ki & 127].lo + hi * p);
    int32_t e = (int32_t)kd >> 7;
    if (e > 1022) // the last binade: 2^1024 itself isn't a double
        return of_bits(bits_of(y) + ((uint64_t)(e - 1) << 52)) * 2.0;
    return of_bits(bits_of(y) + ((uint64_t)(int64_t)e << 52));
}

double exp64(double x) { return exp_core(x); }

void exp64_row(double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = exp_core(x[i]);
}

/* log(x) = e log 2 - log(c) + log1p(m c - 1), x = m 2^e, m in [0.75, 1.5). m is cut into two parts so
 * that both products with c are exact. log1p is its Taylor series to r^7, |r| < 0.0046. */
double log64(double x)
{
    static const uint64_t OFF = 0x3fe7f00000000000;
    static const double LN2_HI = 0x1.62e42fefa38p-1, LN2_LO = 0x1.ef35793c7673p-45;
    uint64_t u = bits_of(x);
    int e = 0;
    if (!(x > 0.0) || x == (double)INFINITY)
        return x == 0.0 ? -(double)INFINITY : x > 0.0 ? x : (double)NAN;
    if (u < 0x0010000000000000u) { // subnormal
        u = bits_of(x * 0x1p54);
        e = -54;
    }
    uint64_t t = u - OFF;
    int j = (int)(t >> 45) & 127;
    int k = (int)((int64_t)t >> 52);
    e += k;
    double m = of_bits(u - ((uint64_t)(int64_t)k << 52));
    double mh = of_bits(bits_of(m) & ~(uint64_t)0x1fffff), c = log_table[j].c;
    double r = (mh * c - 1.0) + (m - mh) * c;
    double r2 = r * r;
    double p = r2 * (-0.5 + r * (1.0 / 3) + r2 * (-0.25 + r * 0.2 + r2 * (-1.0 / 6 + r * (1.0 / 7))));
    double head = (double)e * LN2_HI + log_table[j].hi;
    double sum = head + r; // head is 0 or larger than r: its rounding error is (head - sum) + r
    return sum + (((head - sum) + r) + ((double)e * LN2_LO + log_table[j].lo) + p);
}
