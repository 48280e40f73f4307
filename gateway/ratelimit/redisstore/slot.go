package redisstore

import "strings"

// slot returns the hash slot of a key, as Redis Cluster defines it: the CRC16
// (XMODEM) of its hash tag, or of all of it, modulo 16384.
func slot(key string) uint16 {
	if start := strings.IndexByte(key, '{'); start >= 0 {
		if size := strings.IndexByte(key[start+1:], '}'); size > 0 {
			key = key[start+1 : start+1+size]
		}
	}
	var crc uint16
	for i := range len(key) {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return crc % 16384
}

var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()
