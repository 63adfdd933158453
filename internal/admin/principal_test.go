package admin

import (
	"encoding/hex"
	"testing"
)

// javaNames are DER encoded names and what X500Principal.getName of OpenJDK 17 makes of them.
var javaNames = []struct{ der, name string }{
	{"3040310b300906035504061302444531133011060355040a0c0a41636d652c20496e632e310e300c060355040b0c05612b623d63310c30" +
		"0a06035504030c03737265",
		"CN=sre,OU=a\\+b\\=c,O=Acme\\, Inc.,C=DE"},
	{"301d311b301906035504030c1220236c65616420616e6420747261696c2020",
		"CN=\\ \\#lead and trail\\ \\ "},
	{"30193117301506035504030c0e236122625c633c643e653b662367",
		"CN=\\#a\\\"b\\\\c\\<d\\>e\\;f\\#g"},
	{"30163114300806035504030c01613008060355040b0c0162",
		"CN=a+OU=b"},
	{"303f31133011060a0992268993f22c64011916036f726731143012060a0992268993f22c640119160461636d6531123010060a09922689" +
		"93f22c6401010c027531",
		"UID=u1,DC=acme,DC=org"},
	{"302c3114301206092a864886f70d01090116056140622e633114301206035504030c0b5a6fc3ab20e697a5e69cac",
		"CN=Zoë 日本,1.2.840.113549.1.9.1=#16056140622e63"},
	{"300e310c300a060355040314035a6feb",
		"CN=Zo�"},
	{"3011310f300d06035504031e06005a006f00eb",
		"CN=\\00Z\\00o\\00�"},
	{"304b310f300d06035504080c0648657373656e310c300a06035504070c0346666d310f300d06035504090c065374722e2031310c300a06" +
		"035504051303313233310b3009060355040c0c024472",
		"2.5.4.12=#0c024472,2.5.4.5=#1303313233,STREET=Str. 1,L=Ffm,ST=Hessen"},
	{"3010310e300c06035504030c056e756c0078",
		"CN=nul\\00x"},
	{"30153113301106035504030c0a6c696e650a627265616b",
		"CN=line\nbreak"},
	{"300b3109300706035504030c00",
		"CN="},
	{"300c310a30080603550403020105",
		"CN=#020105"},
	{"302e310c300a06035504040c03737572310e300c060355042a0c05676976656e310e300c06035504110c053630333131",
		"2.5.4.17=#0c053630333131,2.5.4.42=#0c05676976656e,2.5.4.4=#0c03737572"},
	{"3000",
		""},
	{"30133111300f06035504031c080000005a0000006f",
		"CN=#1c080000005a0000006f"},
	{"300e310c300a06035504030c03202020",
		"CN=\\ \\ \\ "},
	{"300e310c300a06035504031b0367656e",
		"CN=gen"},
	{"300e310c300a06035504031203313233",
		"CN=#1203313233"},
}

func TestNamesAreThoseOfJava(t *testing.T) {
	for _, c := range javaNames {
		der, err := hex.DecodeString(c.der)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := distinguishedName(der); !ok || got != c.name {
			t.Errorf("got %q, %v; want %q", got, ok, c.name)
		}
	}
}

func FuzzDistinguishedName(f *testing.F) {
	for _, c := range javaNames {
		der, _ := hex.DecodeString(c.der)
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		name, ok := distinguishedName(der)
		if !ok && name != "" {
			t.Errorf("%q of what can't be read", name)
		}
	})
}
